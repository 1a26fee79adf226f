"""The planner that maximizes the expected accuracy of the whole query within its deadline. Pure.

The value of a node, for a given time left, is that of its best model: the model's accuracy times the value of what
comes after it. The value after it is an average over when the model ends (at one of its learned caches, or at the end
of the network) and over which conditions hold. Values are computed from the last nodes to the first, once, and then
looked up.

This is exact for chains, and for trees in which conditions decide. Steps that run side by side count as independent.
Where they join, the one with the highest number counts what comes after the join; the others count the share by which
it becomes less likely if they are late. Two such shares are multiplied although the smaller one would do, so a query is
never valued too high.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from latebind.domain.costs import Outlook
from latebind.domain.query import Query
from latebind.queries.planners import Branches, Choice, PlanView

NOTABLE = 0.05  # smaller changes, as a share of a model's time or in a probability of leaving, are ignored
GROWN = 1.1  # new tables once so many times as many conditions were judged as when they were made
NEWEST = 0.05  # the weight of the newest wait in the mean
MOST_RESTS = 100  # kept, by node and what may run beside it; beyond that, any of the same node is used
MOST_WAYS = 16  # of conditions that are judged together: the most likely ones, others are ignored
MOST = 64  # steps of a function; a function with more is made coarser
CLOSED = 1 / 8  # a step of a coarse function rises by at least this share of what is missing to the maximum
LEAST = 1e-5  # and by at least this share of the maximum
ROUNDING = 1e-9  # seconds by which sums of the same times may differ
TIE = 1e-12  # a difference in value up to which two options count as equal


class Expected:
    """Maximizes expected accuracy. It may take 100 times as long to work out what follows a node as to look it up.

    The budget of a choice is how long the step may take so that the rest is still as good as if no cache answered it.
    """

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._rests: dict[tuple[int, Remaining], Prospect] = {}
        self._outlooks: dict[str, Outlook] = {}  # that the rests were made for, with these counts of conditions
        self._judged = 0
        self._branches = Branches()
        self._asked: Callable[[str], Outlook] | None = None  # for outlooks, when it was last looked whether these hold
        self._waits: dict[str, float] = {}  # the mean wait of requests at each model

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`. Open nodes before it are assumed to run to the end of their networks."""
        graph = self._graph
        if graph is None or graph.query is not view.query:
            graph = self._graph = Graph(view.query)
            self._rests.clear()
            self._outlooks, self._asked = {}, None
        before = graph.open_before(node, view.open)
        outlooks = view.outlooks(node)
        for model, outlook in zip(view.query.nodes[node].models, outlooks, strict=True):
            known = self._waits.setdefault(model, outlook.wait)
            self._waits[model] = known + NEWEST * (outlook.wait - known)
        if before or graph.behind[node]:  # else nothing follows
            self._renew(view, graph.query.models)
        ends: dict[int, float] = {}

        def begins(number: int) -> float:
            return max([ends[i] for i in view.query.nodes[number].after if i in ends], default=0.0)

        for number in before:
            others = view.outlooks(number)
            chosen = self._choose(graph, number, view.open, others, view.left - begins(number))
            ends[number] = begins(number) + others[chosen.option].wait + others[chosen.option].whole
        return self._choose(graph, node, view.open, outlooks, view.left - begins(node))

    def _renew(self, view: PlanView, models: Sequence[str]) -> None:
        """Forget what follows if the models have come to take notably other times, or much more is known of conditions.

        Requests that wait for a later model now will be gone by then, so the mean waits count instead.
        """
        much_more = view.branches.judged > GROWN * self._judged
        if view.outlook is self._asked and not much_more:
            return
        self._asked = view.outlook
        now, known = [view.outlook(model) for model in models], self._outlooks
        waits = [self._waits.get(model, seen.wait) for model, seen in zip(models, now, strict=True)]
        if (
            known
            and not much_more
            and all(alike(known[one], seen, wait) for one, seen, wait in zip(models, now, waits, strict=True))
        ):
            return
        self._rests.clear()
        self._branches, self._judged = view.branches, view.branches.judged
        self._outlooks = {
            model: Outlook(wait, seen.ends, seen.chances, seen.strict)
            for model, seen, wait in zip(models, now, waits, strict=True)
        }

    def _choose(
        self, graph: "Graph", node: int, opened: frozenset[int], outlooks: Sequence[Outlook], left: float
    ) -> Choice:
        """Return the choice for a node that starts with `left` seconds left, while these nodes are open."""
        rest = self._rest(graph, node, Remaining(opened).without(node))
        chosen, highest, quickest = 0, -1.0, 0.0
        accuracies = graph.query.nodes[node].accuracies
        for option, accuracy in enumerate(accuracies) if len(accuracies) > 1 else ():
            outlook = outlooks[option]
            in_time = left + ROUNDING - outlook.wait
            right, seconds = 0.0, outlook.wait
            for end, chance in zip(outlook.ends, outlook.chances, strict=True):
                seconds += end * chance
                if place := bisect_right(rest.at, in_time - end):
                    right += chance * rest.right[place - 1]
            right *= accuracy
            if outlook.strict and in_time - outlook.least < rest.least:
                right = 0.0
            if right > highest + TIE or (right > highest - TIE and seconds < quickest):
                chosen, highest, quickest = option, right, seconds
        return Choice(chosen, _budget(rest, outlooks[chosen], left))

    def _rest(self, graph: "Graph", node: int, ahead: "Remaining") -> "Prospect":
        """Return the prospect of what comes when `node` has ended."""
        key = node, graph.concerning(node, ahead)
        if (known := self._rests.get(key)) is not None:
            return known
        if len(self._rests) >= MOST_RESTS:
            for (other, _), known in self._rests.items():
                if other == node:
                    return known
        ahead = key[1]
        ways = [
            (outcome.chance, together([self._prospect(graph, i, outcome.ahead.without(i)) for i in outcome.runs]))
            for outcome in graph.outcomes(node, ahead, self._branches)
        ]
        joins = [
            relative(self._prospect(graph, i, Remaining(ahead.may & graph.behind[i], ahead.out)))
            for i in graph.waited_for(node, ahead)
        ]
        found = self._rests[key] = together([mixed(ways), *joins]) if joins else mixed(ways)
        return found

    def _prospect(self, graph: "Graph", node: int, ahead: "Remaining") -> "Prospect":
        """Return the prospect of a node that starts, with its best model."""
        rest, this = self._rest(graph, node, ahead), graph.query.nodes[node]
        options = [
            (self._outlooks[model], accuracy) for model, accuracy in zip(this.models, this.accuracies, strict=True)
        ]
        return best([followed(outlook, accuracy, rest) for outlook, accuracy in options])


def alike(known: Outlook, seen: Outlook, wait: float) -> bool:
    """Return whether plans made with the `known` outlook hold for a model now `seen` with this, at this `wait`."""
    least = NOTABLE * (known.wait + known.ends[-1])
    if abs(known.wait - wait) > least:
        return False
    if known.ends is seen.ends and known.chances is seen.chances:
        return True
    return (
        len(known.ends) == len(seen.ends)
        and all(abs(a - b) <= least for a, b in zip(known.ends, seen.ends, strict=True))
        and all(abs(a - b) <= NOTABLE for a, b in zip(known.chances, seen.chances, strict=True))
    )


def _budget(rest: "Prospect", outlook: Outlook, left: float) -> float:
    """Return how long the step may take: the time left, less what the rest needs to be as good as expected.

    What is expected is that the model ends as late as it can in time.
    """
    left_over = left - outlook.wait
    in_time = bisect_right(outlook.ends, left_over + ROUNDING)
    return left - rest.at[rest.place(left_over - outlook.ends[in_time - 1])] if in_time else left


# The ways that a query may go ----------------------------------------------------------------------------------------


class Remaining(NamedTuple):
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


class Graph:
    """The nodes of a query, and which of them come after which (`behind`)."""

    def __init__(self, query: Query) -> None:
        self.query = query
        everyone = range(len(query.nodes))
        self.behind: list[frozenset[int]] = [frozenset()] * len(query.nodes)
        for number in reversed(everyone):
            next_ones = [other for other in everyone if number in query.nodes[other].after]
            self.behind[number] = frozenset(next_ones).union(*(self.behind[other] for other in next_ones))
        self._before = [frozenset(other for other in everyone if number in self.behind[other]) for number in everyone]
        self._concern = [
            self.behind[number].union(*(query.nodes[other].after for other in self.behind[number]))
            for number in everyone
        ]

    def open_before(self, node: int, opened: frozenset[int]) -> list[int]:
        """Return the open nodes that have to end before this one, in order."""
        return sorted(opened & self._before[node])

    def concerning(self, node: int, ahead: Remaining) -> Remaining:
        """Return the part of what remains that matters to the nodes after `node`."""
        return Remaining(ahead.may & self._concern[node], ahead.out & self._concern[node])

    def waited_for(self, node: int, ahead: Remaining) -> list[int]:
        """Return nodes after `node` that also wait for a node beside it with a higher number, which may run."""
        return [
            other
            for other in sorted(ahead.may)
            if node in self.query.nodes[other].after
            and any(i > node and i in ahead.may and i not in self.behind[node] for i in self.query.nodes[other].after)
        ]

    def outcomes(
        self, node: int, ahead: Remaining, branches: Branches, ended: frozenset[int] = frozenset()
    ) -> Iterator[Outcome]:
        """Yield the ways in which the query may go on when `node` has ended, as far as `node` decides that.

        `ended` are nodes that were left out because of that; the same is then computed for them.
        """
        nodes, ended = self.query.nodes, ended or frozenset((node,))
        due = [
            other
            for other in sorted(ahead.may)
            if not ended.isdisjoint(nodes[other].after)
            and not any(i > node and i in ahead.may for i in nodes[other].after)
        ]
        hopeless = {other for other in due if any(ahead.out.issuperset(group) for group in nodes[other].needs)}
        judged = [other for other in due if nodes[other].guarded and other not in hopeless]
        ways = sorted(branches.ways(judged), key=lambda way: -way[1])[:MOST_WAYS] if judged else [((), 1.0)]
        total = sum([chance for _, chance in ways])
        for way, chance in ways:
            out = hopeless.union(other for other, holds in zip(judged, way, strict=True) if not holds)
            runs = tuple([other for other in due if other not in out])
            if not out:
                yield Outcome(chance / total, runs, ahead)
                continue
            after = Remaining(ahead.may - out, ahead.out | out)
            for more in self.outcomes(node, after, branches, frozenset(out)):
                yield Outcome(chance / total * more.chance, runs + more.runs, more.ahead)


# What the rest is worth ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prospect:
    """With `at[i]` to `at[i + 1]` seconds left, the rest is right and in time with probability `right[i]`.

    `at` ascends from 0; with less time than that nothing runs any more: the probability is 0.
    """

    at: tuple[float, ...]
    right: tuple[float, ...]

    @property
    def least(self) -> float:
        """The fewest seconds with which the rest may be right."""
        return next((at for at, right in zip(self.at, self.right, strict=True) if right > 0.0), inf)

    def place(self, left: float) -> int:
        """Return the index of the step that contains `left` seconds, -1 if that is too late."""
        return bisect_right(self.at, left + ROUNDING) - 1

    def along(self, at: Sequence[float]) -> list[float]:
        """Return the probability at each of these ascending times, none before its first."""
        found, place = [], 0
        for time in at:
            while place + 1 < len(self.at) and self.at[place + 1] <= time:
                place += 1
            found.append(self.right[place])
        return found


END = Prospect((0.0,), (1.0,))  # of a query that has ended: right, if it is in time


def followed(outlook: Outlook, accuracy: float, rest: Prospect) -> Prospect:
    """Return the prospect of running a model followed by `rest`."""
    changes = [(0.0, 0.0)]
    for end, chance in zip(outlook.ends, outlook.chances, strict=True):
        changes += _scaled(rest, accuracy * chance, outlook.wait + end)
    if outlook.strict:
        least = outlook.wait + outlook.least + rest.least
        changes = [(0.0, 0.0), *[(max(at, least), more) for at, more in changes[1:]]]
    return _summed(changes)


def mixed(ways: Iterable[tuple[float, Prospect]]) -> Prospect:
    """Return the expected prospect, given the probability of each."""
    return _summed([change for chance, prospect in ways for change in _scaled(prospect, chance, 0.0)])


def together(prospects: Sequence[Prospect]) -> Prospect:
    """Return the prospect of all of these side by side; all must be right."""
    if len(prospects) <= 1:
        return prospects[0] if prospects else END
    at = sorted({time for prospect in prospects for time in prospect.at})
    right = [1.0] * len(at)
    for prospect in prospects:
        right = [one * other for one, other in zip(right, prospect.along(at), strict=True)]
    return _coarse(at, right)


def best(prospects: Sequence[Prospect]) -> Prospect:
    """Return the prospect of picking one of these by the time left."""
    at = sorted({time for prospect in prospects for time in prospect.at})
    right = [0.0] * len(at)
    for prospect in prospects:
        right = [max(one, other) for one, other in zip(right, prospect.along(at), strict=True)]
    return _coarse(at, right)


def relative(prospect: Prospect) -> Prospect:
    """Return probabilities relative to that with unlimited time: the effect of being late alone."""
    most = prospect.right[-1]
    return Prospect(prospect.at, tuple([right / most if most else 0.0 for right in prospect.right]))


def _scaled(prospect: Prospect, factor: float, later: float) -> list[tuple[float, float]]:
    """Return the changes of a prospect and their times, scaled by `factor` and delayed by `later` seconds."""
    before = (0.0, *prospect.right)
    return [
        (at + later, factor * (now - then)) for at, now, then in zip(prospect.at, prospect.right, before, strict=False)
    ]


def _summed(changes: list[tuple[float, float]]) -> Prospect:
    """Return the prospect that is the sum of all changes; the first change is at 0."""
    at, right = list[float](), list[float]()
    total = 0.0
    for time, more in sorted(changes):
        total += more
        if not at or time > at[-1]:
            at.append(time)
            right.append(total)
        else:
            right[-1] = total
    return _coarse(at, right)


def _coarse(at: Sequence[float], right: Sequence[float]) -> Prospect:
    """Return the prospect with fewer steps if it has too many: small changes are joined with the next one.

    It stays finer near the maximum, and never promises more than before.
    """
    if len(at) > MOST:
        top = right[-1]  # more time is never worse
        kept = [0]
        for i, value in enumerate(right):
            if value - right[kept[-1]] >= max(CLOSED * (top - right[kept[-1]]), LEAST * top):
                kept.append(i)
        at, right = [at[i] for i in kept], [right[i] for i in kept]
    return Prospect(tuple(at), tuple(right))
