"""How often the conditions of a query's nodes hold, counted jointly as queries run. Pure."""

from collections import Counter
from collections.abc import Sequence

PRIOR = 1.0  # the weight, in queries, of the prior over the ways


class Branches:
    """The counts of one query. Nodes that are judged together, when one step ends, are counted together."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, ...], Counter[tuple[bool, ...]]] = {}
        self.judged = 0

    def observe(self, nodes: Sequence[int], holds: Sequence[bool]) -> None:
        """Count which conditions held, of nodes that were judged together."""
        self.judged += 1
        self._ways.setdefault(tuple(nodes), Counter())[tuple(holds)] += 1

    def ways(self, nodes: Sequence[int]) -> list[tuple[tuple[bool, ...], float]]:
        """Return each way in which the conditions of `nodes`, judged together, may turn out, and its probability.

        The prior is that exactly one of them holds, or none.
        """
        wanted = tuple(nodes)
        seen = self._ways.get(wanted, Counter())
        beforehand = [tuple(number == one for number in wanted) for one in (*wanted, None)]
        share = PRIOR / len(beforehand)
        counts = {way: share + seen[way] for way in beforehand}
        counts |= {way: count + (share if way in beforehand else 0.0) for way, count in seen.items()}
        total = sum(counts.values())
        return [(way, count / total) for way, count in counts.items()]
