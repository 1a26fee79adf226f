"""Whether a request that is alone runs on the cores of all workers, or on those of its own: measured, and learned.

The engine measures both ways once when it starts, which may be at a bad moment. So both are also compared by the runs
of lone requests as they come, and now and then some requests try the way that is not in use, where it could pay.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil

from latebind.batching.pace import NOTHING

LATEST = 16  # the latest runs of each way that count
RECENT = 64  # runs within which all of these must be for a comparison: in an hour a machine is twice as slow as before
SLOWEST = 0.25  # the slowest share of them does not count: others on the machine make single runs much longer
COMPARED = 32  # the latest comparisons that count
EXTREME = 0.25  # share of them at either end that does not count
MEASURED = 4  # the weight of the measurement at the start, in comparisons
FIRST, SELDOM = 32, 192  # runs in one way after which the other is tried: at first, and at most
TRIES = 3  # runs of a trial, one after another
COLD = 8  # after this number of runs in the other way, the first run of a way does not count: it takes longer
HOPED = 0.75  # the share of time that all cores may take; where even that would not pay, they are not tried


class _Way:
    """The runs in one way: their seconds over those that the profile has for a worker's own cores."""

    def __init__(self) -> None:
        self.typical = 0.0
        self.runs = 0
        self.others = COLD  # runs in the other way since the last one in this way
        self._latest: deque[tuple[int, float]] = deque(maxlen=LATEST)  # with the number of the run among those of both

    @property
    def is_due(self) -> bool:
        return self.others >= min(SELDOM, FIRST * (1 + self.runs // TRIES))

    def recent(self, number: int) -> int:
        """Return how many runs count that were shortly before run `number`; 0 if others before them count too."""
        return len(self._latest) if self._latest and number - self._latest[0][0] <= RECENT else 0

    def lately(self, number: int) -> int:
        """Return how many of the runs that count were shortly before run `number`."""
        return sum([number - run <= RECENT for run, _ in self._latest])

    def observe(self, number: int, ratio: float) -> bool:
        """Note a run; return whether it counts."""
        counts = self.others < COLD
        if counts:
            self.runs += 1
            self._latest.append((number, ratio))
            kept = sorted([ratio for _, ratio in self._latest])[: ceil((1.0 - SLOWEST) * len(self._latest))]
            self.typical = sum(kept) / len(kept)
        self.others = 0
        return counts


class _Stage:
    """One stage of a model, or one step of it. `share` is its time on all cores over that on its worker's own.

    Runs in the rarer way are compared with those in the other one shortly before, so the share does not depend on how
    quick the machine was when either was last in use.
    """

    def __init__(self, share: float) -> None:
        self.share = self._measured = share
        self.tries = 0  # runs that are left of a trial
        self.tries_all = False  # whether the trial is of all cores
        self._known = False  # whether any run has differed from the measurement
        self._number = 0
        self._own, self._all = _Way(), _Way()
        self._compared: deque[float] = deque(maxlen=COMPARED)

    def observe(self, ratio: float, *, wide: bool) -> None:
        if not self._known:
            self._known = abs(ratio - (self._measured if wide else 1.0)) > NOTHING
        self._number += 1
        way, other = (self._all, self._own) if wide else (self._own, self._all)
        counts = way.observe(self._number, ratio)
        other.others += 1
        if counts and ratio > 0.0 and other.typical > 0.0 and way.lately(self._number) <= other.recent(self._number):
            self._compare(ratio / other.typical if wide else other.typical / ratio)
        if self.tries:
            self.tries -= wide is self.tries_all
        elif self._known and other.is_due:
            self.tries, self.tries_all = TRIES, not wide

    def _compare(self, share: float) -> None:
        self._compared.append(share)
        cut = int(EXTREME * len(self._compared))
        kept = sorted(self._compared)[cut : len(self._compared) - cut]
        weight = len(self._compared)
        self.share = (MEASURED * self._measured + weight * sum(kept) / len(kept)) / (MEASURED + weight)


class Lone:
    """Compares both ways for one model; `shares` were measured as the engine started, one for each stage.

    On a worker's own cores, stages take these `parts` of the time of all.
    """

    def __init__(self, shares: Sequence[float], parts: Sequence[float] = (1.0,)) -> None:
        self._stages = [_Stage(share) for share in shares]
        self._parts = parts

    def share(self, stage: int) -> float:
        """Return the seconds of a stage on all cores over its seconds on its worker's own."""
        return self._stages[stage].share

    @property
    def whole(self) -> float:
        """The share of all stages together."""
        return sum([part * stage.share for part, stage in zip(self._parts, self._stages, strict=True)])

    def pays(self, stage: int, seconds: float, rate: float) -> bool:
        """Return whether a request that takes `seconds` on its worker's own cores should have all cores for a stage.

        It should where that gains more than requests lose that arrive meanwhile, `rate` per second (`gains`). While a
        way is on trial because it has not been used for long, the answer is that way.
        """
        found = self._stages[stage]
        if found.tries and gains(seconds, min(HOPED, found.share), rate):
            return found.tries_all
        return gains(seconds, found.share, rate)

    def observe(self, stage: int, expected: float, seconds: float, *, wide: bool) -> None:
        """Note the seconds of a stage for a lone request, where it takes `expected` on a worker's own cores."""
        if expected > 0.0:
            self._stages[stage].observe(seconds / expected, wide=wide)


def gains(seconds: float, share: float, rate: float) -> bool:
    """Return whether a request gains more on all cores than the requests lose that arrive meanwhile.

    `rate` requests arrive per second. They wait for the next stage boundary, half of the run on average, while another
    worker would have started them at once.
    """
    wide = share * seconds
    return seconds - wide > max(0.0, 0.5 * wide * wide * rate)
