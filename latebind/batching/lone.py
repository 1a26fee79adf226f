"""Whether a request that is alone has the cores of all workers: by what either way has taken, measured and learned.

The engine measures the share once as it starts, and that may be at a bad moment. So the ways are compared by the runs
of lone requests as they come, and now and then some go the other way, where that may pay.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil

from latebind.batching.pace import NOTHING

LATEST = 16  # runs of either way that count
SLOWEST = 0.25  # share of them that does not: others on the machine make single ones much longer
MEASURED = 4  # runs in either way for which the share counts that was measured at the start
FIRST, SELDOM = 16, 192  # runs in one way after which the other is tried: at first, and at last
TRIES = 3  # one after another
COLD = 8  # runs in the other way after which the first of a way does not count: it takes longer
HOPED = 0.75  # the share that all cores may come to: where even that would not pay, they are not tried


class _Way:
    """What runs in one way have taken, over what the profile says that they take with a worker's own cores."""

    def __init__(self) -> None:
        self.typical = 0.0
        self.runs = 0
        self.others = COLD  # runs in the other way since the last of this
        self._latest: deque[float] = deque(maxlen=LATEST)

    @property
    def is_due(self) -> bool:
        return self.others >= min(SELDOM, FIRST * (1 + self.runs // TRIES))

    def observe(self, ratio: float) -> None:
        if self.others < COLD:
            self.runs += 1
            self._latest.append(ratio)
            kept = sorted(self._latest)[: ceil((1.0 - SLOWEST) * len(self._latest))]
            self.typical = sum(kept) / len(kept)
        self.others = 0


class _Stage:
    """One stage of a model, or one step of it."""

    def __init__(self, share: float) -> None:
        self.share = self._measured = share
        self.tries = 0  # runs yet to come in the way that is tried
        self.tries_all = False  # whether that is the one with all cores
        self._known = False  # whether anything has differed from what was measured
        self._own, self._all = _Way(), _Way()

    def observe(self, ratio: float, *, wide: bool) -> None:
        if not self._known:
            self._known = abs(ratio - (self._measured if wide else 1.0)) > NOTHING
        way, other = (self._all, self._own) if wide else (self._own, self._all)
        way.observe(ratio)
        other.others += 1
        runs = min(way.runs, other.runs)
        if runs and self._own.typical:
            seen = self._all.typical / self._own.typical
            self.share = (MEASURED * self._measured + runs * seen) / (MEASURED + runs)
        if self.tries:
            self.tries -= wide is self.tries_all
        elif self._known and other.is_due:
            self.tries, self.tries_all = TRIES, not wide


class Lone:
    """Compares both ways for one model; `shares` were measured as the engine started, one for each stage."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._stages = [_Stage(share) for share in shares]

    def share(self, stage: int) -> float:
        """Return what a stage takes with all cores, as a share of what it takes with its worker's own."""
        return self._stages[stage].share

    def pays(self, stage: int, seconds: float, rate: float) -> bool:
        """Tell whether a request that takes so many seconds with its worker's own cores should have all for a stage.

        That is where it gains more than those lose who come meanwhile, so many a second (`gains`), or where the other
        way is to be tried because it has not been seen for long.
        """
        found = self._stages[stage]
        if found.tries and gains(seconds, min(HOPED, found.share), rate):
            return found.tries_all
        return gains(seconds, found.share, rate)

    def observe(self, stage: int, expected: float, seconds: float, *, wide: bool) -> None:
        """Hear what a stage took a request that was alone, where it takes `expected` with a worker's own cores."""
        if expected > 0.0:
            self._stages[stage].observe(seconds / expected, wide=wide)


def gains(seconds: float, share: float, rate: float) -> bool:
    """Tell whether one request gains more with all cores than those lose who come meanwhile, so many a second.

    They wait for its next boundary, half of the time that the run takes, where another worker would have begun.
    """
    wide = share * seconds
    return seconds - wide > max(0.0, 0.5 * wide * wide * rate)
