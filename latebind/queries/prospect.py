"""What the rest of a query is worth, by the time that is left for it: functions that change in steps. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from latebind.domain.outlook import Outlook

MOST = 64  # steps of a function; more are made coarser
CLOSED = 1 / 8  # of what is missing to the best, which a step of a coarse function closes at least
LEAST = 1e-5  # of all there is, which it is higher by in any case
ROUNDING = 1e-9  # seconds by which sums of the same times may differ
TIE = 1e-12  # of worth, which is none


@dataclass(frozen=True, slots=True)
class Prospect:
    """From `at[i]` seconds left on, up to `at[i + 1]`, the rest ends right and in time with the chance `right[i]`.

    `cost[i]` is the price of the seconds that it is expected to take, in the same unit. `at` is ascending from 0; with
    less than that left nothing runs any more, and both are 0.
    """

    at: tuple[float, ...]
    right: tuple[float, ...]
    cost: tuple[float, ...]

    def place(self, left: float) -> int:
        """Return the step in which so many seconds are, -1 where that is too late."""
        return bisect_right(self.at, left + ROUNDING) - 1

    def worth(self, left: float) -> float:
        """Return what the rest is worth with so many seconds left."""
        place = self.place(left)
        return self.right[place] - self.cost[place] if place >= 0 else 0.0


END = Prospect((0.0,), (1.0,), (0.0,))  # of a query that has ended: it is right, if it is in time


def behind(rest: Prospect, outlook: Outlook, accuracy: float, price: float) -> Prospect:
    """Return the prospect of running a model, and `rest` behind it.

    What follows a wrong answer is in vain, and its seconds do not count.
    """
    changes = [(0.0, 0.0, price * (outlook.wait + outlook.mean))]
    for end, chance in zip(outlook.ends, outlook.chances, strict=True):
        changes += _scaled(rest, accuracy * chance, outlook.wait + end)
    return _summed(changes)


def mixed(ways: Iterable[tuple[float, Prospect]]) -> Prospect:
    """Return the prospect where each of these comes true with its chance."""
    return _summed([change for chance, prospect in ways for change in _scaled(prospect, chance, 0.0)])


def together(prospects: Sequence[Prospect]) -> Prospect:
    """Return the prospect where all of these go on side by side: all have to be right."""
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
    """Return the prospect where one of these, the quicker first, is picked by the time left; the first of equals."""
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
    """Return the chances as shares of that with all the time there is, free of cost: what being late costs."""
    most = prospect.right[-1]
    return Prospect(
        prospect.at, tuple([right / most if most else 0.0 for right in prospect.right]), (0.0,) * len(prospect.at)
    )


def _places(prospect: Prospect, at: Sequence[float]) -> list[int]:
    """Return the step of `prospect` at each of these ascending times, none of which is before its first."""
    places, place = [], 0
    for time in at:
        while place + 1 < len(prospect.at) and prospect.at[place + 1] <= time:
            place += 1
        places.append(place)
    return places


def _scaled(prospect: Prospect, factor: float, later: float) -> list[tuple[float, float, float]]:
    """Return by how much the prospect changes and when, times a factor and so much later."""
    changes, right, cost = [], 0.0, 0.0
    for at, now, spent in zip(prospect.at, prospect.right, prospect.cost, strict=True):
        changes.append((at + later, factor * (now - right), factor * (spent - cost)))
        right, cost = now, spent
    return changes


def _summed(changes: list[tuple[float, float, float]]) -> Prospect:
    """Return what all changes come to; the first is at 0."""
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
    """Return the prospect with fewer steps, where they are many: those by which little changes wait for the next.

    The nearer it is to the best, the finer it stays; it never promises more than it did.
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
