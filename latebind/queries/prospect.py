"""What is to come of a query: which ways it may go, how often, and what the rest is worth by the time left. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latebind.domain.costs import Outlook
from latebind.domain.query import Query

MOST = 64  # steps of a function; a function with more is made coarser
CLOSED = 1 / 8  # a step of a coarse function rises by at least this share of what is missing to the maximum
LEAST = 1e-5  # and by at least this share of the whole range
ROUNDING = 1e-9  # seconds by which sums of the same times may differ
TIE = 1e-12  # a difference in value up to which two options count as equal
PRIOR = 1.0  # the weight, in queries, of the prior over the ways in which conditions may turn out
MOST_WAYS = 16  # of conditions that are judged together: the most likely ones, others are ignored


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
    """The nodes of a query, and which of them come behind which."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.models = query.models
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


@dataclass(frozen=True, slots=True)
class Prospect:
    """With `at[i]` to `at[i + 1]` seconds left, the rest is right and in time with probability `right[i]`.

    `cost[i]` is the price of its expected seconds, in the same unit. `at` ascends from 0; with less time than that
    nothing runs any more, and both are 0.
    """

    at: tuple[float, ...]
    right: tuple[float, ...]
    cost: tuple[float, ...]

    def place(self, left: float) -> int:
        """Return the index of the step that contains so many seconds, -1 if that is too late."""
        return bisect_right(self.at, left + ROUNDING) - 1

    def worth(self, left: float) -> float:
        """Return the value of the rest with so many seconds left."""
        place = self.place(left)
        return self.right[place] - self.cost[place] if place >= 0 else 0.0


END = Prospect((0.0,), (1.0,), (0.0,))  # of a query that has ended: right, if it is in time


def behind(rest: Prospect, outlook: Outlook, accuracy: float, price: float) -> Prospect:
    """Return the prospect of running a model followed by `rest`.

    Whatever follows a wrong answer is in vain, so its seconds do not count.
    """
    changes = [(0.0, 0.0, price * (outlook.wait + outlook.mean))]
    for end, chance in zip(outlook.ends, outlook.chances, strict=True):
        changes += _scaled(rest, accuracy * chance, outlook.wait + end)
    return _summed(changes)


def mixed(ways: Iterable[tuple[float, Prospect]]) -> Prospect:
    """Return the expected prospect, given the probability of each."""
    return _summed([change for chance, prospect in ways for change in _scaled(prospect, chance, 0.0)])


def together(prospects: Sequence[Prospect]) -> Prospect:
    """Return the prospect of all of these side by side; all must be right."""
    if len(prospects) <= 1:
        return prospects[0] if prospects else END
    at = sorted({time for prospect in prospects for time in prospect.at})
    right, cost = [1.0] * len(at), [0.0] * len(at)
    for prospect in prospects:
        for i, place in enumerate(_places(prospect, at)):
            right[i] *= prospect.right[place]
            cost[i] += prospect.cost[place]
    return _coarse(Prospect(tuple(at), tuple(right), tuple(cost)))


def best(prospects: Sequence[Prospect]) -> Prospect:
    """Return the prospect of picking one of these by the time left; of equally good ones the first, which is faster."""
    at = sorted({time for prospect in prospects for time in prospect.at})
    right, cost = [0.0] * len(at), [0.0] * len(at)
    worth = [-float("inf")] * len(at)
    for prospect in prospects:
        for i, place in enumerate(_places(prospect, at)):
            value = prospect.right[place] - prospect.cost[place]
            if value > worth[i] + TIE:
                worth[i], right[i], cost[i] = value, prospect.right[place], prospect.cost[place]
    return _coarse(Prospect(tuple(at), tuple(right), tuple(cost)))


def relative(prospect: Prospect) -> Prospect:
    """Return probabilities relative to that with unlimited time, at no cost: the effect of being late alone."""
    most = prospect.right[-1]
    return Prospect(
        prospect.at, tuple([right / most if most else 0.0 for right in prospect.right]), (0.0,) * len(prospect.at)
    )


def _places(prospect: Prospect, at: Sequence[float]) -> list[int]:
    """Return the index of the step of `prospect` at each of these ascending times, none before its first."""
    places, place = [], 0
    for time in at:
        while place + 1 < len(prospect.at) and prospect.at[place + 1] <= time:
            place += 1
        places.append(place)
    return places


def _scaled(prospect: Prospect, factor: float, later: float) -> list[tuple[float, float, float]]:
    """Return the changes of a prospect and their times, scaled by `factor` and delayed by `later` seconds."""
    changes, right, cost = [], 0.0, 0.0
    for at, now, spent in zip(prospect.at, prospect.right, prospect.cost, strict=True):
        changes.append((at + later, factor * (now - right), factor * (spent - cost)))
        right, cost = now, spent
    return changes


def _summed(changes: list[tuple[float, float, float]]) -> Prospect:
    """Return the prospect that is the sum of all changes; the first change is at 0."""
    at, right, cost = list[float](), list[float](), list[float]()
    for time, more, spent in sorted(changes):
        before = (right[-1], cost[-1]) if at else (0.0, 0.0)
        if not at or time > at[-1]:
            at.append(time)
            right.append(before[0] + more)
            cost.append(before[1] + spent)
        else:
            right[-1] += more
            cost[-1] += spent
    return _coarse(Prospect(tuple(at), tuple(right), tuple(cost)))


def _coarse(prospect: Prospect) -> Prospect:
    """Return the prospect with fewer steps if it has too many: small changes are joined with the next one.

    It stays finer near the maximum, and never promises more than before.
    """
    if len(prospect.at) <= MOST:
        return prospect
    worth = [right - cost for right, cost in zip(prospect.right, prospect.cost, strict=True)]
    top, least = max(worth), LEAST * (max(worth) - min(worth))
    kept = [0]
    for i, value in enumerate(worth):
        if abs(value - worth[kept[-1]]) >= max(CLOSED * (top - worth[kept[-1]]), least):
            kept.append(i)
    return Prospect(*(tuple([values[i] for i in kept]) for values in (prospect.at, prospect.right, prospect.cost)))
