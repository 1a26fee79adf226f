"""How often the conditions of a query's nodes hold, together: counted as queries go by. Pure."""

from collections import Counter
from collections.abc import Sequence

PRIOR = 1.0  # queries that are taken to have gone each way before the first


class Branches:
    """The counts of one query. Nodes that are judged together, at the end of one step, count together."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, ...], Counter[tuple[bool, ...]]] = {}
        self.judged = 0

    def observe(self, nodes: Sequence[int], holds: Sequence[bool]) -> None:
        """Hear which conditions held of nodes that were judged together."""
        self.judged += 1
        self._ways.setdefault(tuple(nodes), Counter())[tuple(holds)] += 1

    def ways(self, nodes: Sequence[int]) -> list[tuple[tuple[bool, ...], float]]:
        """Return each way in which the conditions of `nodes`, judged together, may turn out, and how likely it is.

        As long as little is known, exactly one of them is taken to hold, or none.
        """
        wanted = tuple(nodes)
        seen = self._ways.get(wanted, Counter())
        beforehand = [tuple(number == one for number in wanted) for one in (*wanted, None)]
        share = PRIOR / len(beforehand)
        counts = {way: share + seen[way] for way in beforehand}
        counts |= {way: count + (share if way in beforehand else 0.0) for way, count in seen.items()}
        total = sum(counts.values())
        return [(way, count / total) for way, count in counts.items()]
