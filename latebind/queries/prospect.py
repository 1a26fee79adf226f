"""The value of the rest of a query as a step function of the time left. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from latebind.domain.costs import Outlook

MOST = 64  # steps of a function; a function with more is made coarser
CLOSED = 1 / 8  # a step of a coarse function rises by at least this share of what is missing to the maximum
LEAST = 1e-5  # and by at least this share of the whole range
ROUNDING = 1e-9  # seconds by which sums of the same times may differ
TIE = 1e-12  # a difference in value up to which two options count as equal


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
