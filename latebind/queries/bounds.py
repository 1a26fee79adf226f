"""Lower bounds of the time that a query, or what follows a node, takes: with less, no request is in time. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from latebind.domain.costs import Outlook
from latebind.domain.query import Query

Outlooks = Mapping[str, Outlook]


class LowerBound:
    """Bounds by the steps that always run, and the steps before them. Conditional steps count as 0 seconds.

    Waits are those of requests that arrive now, and pass while earlier steps run: along a path they do not add up.
    """

    def __init__(self, query: Query) -> None:
        self._nodes = query.nodes
        every = range(len(query.nodes))
        self._all = self._that_count(every)
        self._after = [self._that_count(_behind(query, number)) for number in every]

    def seconds(self, outlooks: Outlooks) -> float:
        """Return the seconds of the longest path, each step with its fastest model."""
        if not self._all:
            return 0.0
        return self._longest(
            self._all, [[(outlooks[m].wait, outlooks[m].ends[0]) for m in self._nodes[i].models] for i in self._all]
        )

    def seconds_after(self, number: int, outlooks: Outlooks) -> float:
        """Return the same for what follows a node, without any waiting, which is not known in advance."""
        steps = self._after[number]
        if not steps:
            return 0.0
        return self._longest(steps, [[(0.0, outlooks[m].ends[0]) for m in self._nodes[i].models] for i in steps])

    def _that_count(self, among: Iterable[int]) -> Sequence[int]:
        kept, before = list[int](), set[int]()
        for number in sorted(among, reverse=True):
            if not self._nodes[number].guarded or number in before:
                kept.append(number)
                before.update(self._nodes[number].after)
        return kept[::-1]

    def _longest(self, steps: Sequence[int], models: Sequence[Sequence[tuple[float, float]]]) -> float:
        """Return the seconds of the longest path through `steps`, each with the one of its `models` that ends first.

        Of each model come the time before which it does not begin, counted from now, and the time that it takes.
        """
        ends: dict[int, float] = {}
        for number, options in zip(steps, models, strict=True):
            node = self._nodes[number]
            ready = max([ends[i] for i in node.after if i in ends], default=0.0)
            ends[number] = ready if node.guarded else min([max(ready, wait) + own for wait, own in options])
        return max(ends.values())


def longest_path(query: Query) -> int:
    """Return the number of nodes on the longest path."""
    steps: list[int] = []
    for node in query.nodes:
        steps.append(1 + max([steps[i] for i in node.after], default=0))
    return max(steps)


def _behind(query: Query, number: int) -> set[int]:
    found: set[int] = set()
    for i in range(number + 1, len(query.nodes)):
        if not {number, *found}.isdisjoint(query.nodes[i].after):
            found.add(i)
    return found
