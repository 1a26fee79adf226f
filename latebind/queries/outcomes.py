"""Which nodes can start when a node has ended: the ways in which conditions may turn out, with probabilities. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from latebind.domain.query import Query
from latebind.queries.branches import Branches

MOST_PLACES = 1024  # places kept for a query; each is a node and what may still run beside it
MOST_WAYS = 16  # the most likely ways in which conditions judged together may turn out; others are ignored


@dataclass(frozen=True, slots=True)
class Remaining:
    """What remains at some point of a query: nodes that `may` run, and nodes known to be left `out`.

    Nodes that run side by side are assumed to end in the order of their numbers.
    """

    may: frozenset[int]
    out: frozenset[int] = frozenset()

    def without(self, node: int) -> "Remaining":
        """Return what remains beside a node that runs."""
        return Remaining(self.may - {node}, self.out)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a query may go on: with probability `chance`, the nodes in `runs` start at once."""

    chance: float
    runs: tuple[int, ...]
    ahead: Remaining


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A `node` that is to be picked, and the open nodes `before` it, in order.

    `ahead` is the part of what remains that matters to the nodes behind it; `models` are all models of those nodes.
    """

    node: int
    before: tuple[int, ...]
    ahead: Remaining
    models: tuple[str, ...]


class Graph:
    """The nodes of a query, and which of them come behind which."""

    def __init__(self, query: Query) -> None:
        self.query = query
        everyone = range(len(query.nodes))
        self.behind: list[frozenset[int]] = [frozenset()] * len(query.nodes)
        for number in reversed(everyone):
            next_ones = [other for other in everyone if number in query.nodes[other].after]
            self.behind[number] = frozenset(next_ones).union(*(self.behind[other] for other in next_ones))
        self._before = [frozenset(other for other in everyone if number in self.behind[other]) for number in everyone]
        self._places: dict[tuple[int, frozenset[int]], Place] = {}
        self._concern = [
            self.behind[number].union(*(query.nodes[other].after for other in self.behind[number]))
            for number in everyone
        ]

    def place(self, node: int, opened: frozenset[int]) -> Place:
        """Return the place for picking a node while these nodes are open; always the same object."""
        found = self._places.get((node, opened))
        if found is None:
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            found = self._places[node, opened] = self._place(node, opened)
        return found

    def _place(self, node: int, opened: frozenset[int]) -> Place:
        before = tuple(sorted(opened & self._before[node]))
        picked = {node, *before}
        later = opened.intersection(set[int]().union(*[self.behind[i] for i in picked]))
        models = dict.fromkeys(model for i in sorted(later) for model in self.query.nodes[i].models)
        return Place(node, before, self.concerning(node, Remaining(opened - picked)), tuple(models))

    def concerning(self, node: int, ahead: Remaining) -> Remaining:
        """Return the part of what remains that matters to the nodes behind `node`."""
        return Remaining(ahead.may & self._concern[node], ahead.out & self._concern[node])

    def outcomes(self, node: int, ahead: Remaining, branches: Branches) -> Iterator[Outcome]:
        """Yield the ways in which the query may go on when `node` has ended, as far as `node` decides that."""
        yield from self._decided(node, ahead, branches, frozenset((node,)))

    def waited_for(self, node: int, ahead: Remaining) -> list[int]:
        """Return nodes behind `node` that also wait for a node beside it with a higher number, which may run."""
        return [
            other
            for other in sorted(ahead.may)
            if node in self.query.nodes[other].after
            and any(i > node and i in ahead.may and i not in self.behind[node] for i in self.query.nodes[other].after)
        ]

    def _decided(self, node: int, ahead: Remaining, branches: Branches, ended: frozenset[int]) -> Iterator[Outcome]:
        """Yield what follows when nodes have `ended` or been left out."""
        due = [other for other in sorted(ahead.may) if self._due(other, node, ahead, ended)]
        hopeless = {other for other in due if not self._possible(other, ahead)}
        judged = [other for other in due if self.query.nodes[other].guarded and other not in hopeless]
        for way, chance in _likely(branches.ways(judged)) if judged else [((), 1.0)]:
            out = hopeless.union(other for other, holds in zip(judged, way, strict=True) if not holds)
            runs = tuple([other for other in due if other not in out])
            if not out:
                yield Outcome(chance, runs, ahead)
                continue
            after = Remaining(ahead.may - out, ahead.out | out)
            for more in self._decided(node, after, branches, frozenset(out)):
                yield Outcome(chance * more.chance, runs + more.runs, more.ahead)

    def _due(self, other: int, node: int, ahead: Remaining, ended: frozenset[int]) -> bool:
        after = self.query.nodes[other].after
        return not ended.isdisjoint(after) and not any(i > node and i in ahead.may for i in after)

    def _possible(self, other: int, ahead: Remaining) -> bool:
        return not any(ahead.out.issuperset(group) for group in self.query.nodes[other].needs)


def _likely(ways: list[tuple[tuple[bool, ...], float]]) -> list[tuple[tuple[bool, ...], float]]:
    """Return the most likely ways, with probabilities scaled as if there were no others."""
    kept = sorted(ways, key=lambda way: -way[1])[:MOST_WAYS]
    total = sum([chance for _, chance in kept])
    return [(way, chance / total) for way, chance in kept]
