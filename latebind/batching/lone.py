"""Whether a request that is alone runs on the cores of all workers, or on those of its own: measured, and learned.

The engine measures both ways once when it starts, which may be at a bad moment. So both are also compared by the runs
of lone requests as they come, and now and then some requests try the way that is not in use, where it could pay.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from latebind.batching.pace import NOTHING

AROUND = 8  # runs before and behind a run, among which those in the other way are what it is compared with
FEWEST = 4  # of these that there must be on either side: in an hour a machine is twice as slow as before
COMPARED = 32  # the latest comparisons that count
EXTREME = 0.25  # share of them at either end that does not count
MEASURED = 4  # the weight of the measurement at the start, in comparisons
FIRST, SELDOM = 32, 192  # runs in one way after which the other is tried: at first, and at most
TRIES = 3  # runs of a trial, one after another
COLD = 8  # after this number of runs in the other way, the first run of a way does not count: it takes longer
HOPED = 0.75  # the share of time that all cores may take; where even that would not pay, they are not tried


@dataclass(slots=True)
class _Way:
    """The runs in one way: how many have counted, and how many others there were since the last one."""

    counted: int = 0
    others: int = COLD

    @property
    def is_due(self) -> bool:
        return self.others >= min(SELDOM, FIRST * (1 + self.counted // TRIES))

    def observe(self) -> bool:
        """Note a run; return whether it counts."""
        counts = self.others < COLD
        self.counted += counts
        self.others = 0
        return counts


class _Stage:
    """One stage of a model, or one step of it. `share` is its time on all cores over that on its worker's own.

    A run is compared with those in the other way shortly before and shortly behind it. So the share depends neither on
    how quick the machine was when a way was last in use, nor on the moment at which the other way came into use.
    """

    def __init__(self, share: float) -> None:
        self.share = self._measured = share
        self.tries = 0  # runs that are left of a trial
        self.tries_all = False  # whether the trial is of all cores
        self._known = False  # whether any run has differed from the measurement
        self._own, self._all = _Way(), _Way()
        self._latest: deque[tuple[bool, float]] = deque(maxlen=2 * AROUND + 1)  # on all cores; the ratio, 0: no count
        self._compared: deque[float] = deque(maxlen=COMPARED)

    def observe(self, ratio: float, *, wide: bool) -> None:
        """Note a run that took `ratio` times what the profile has for a worker's own cores."""
        if not self._known:
            self._known = abs(ratio - (self._measured if wide else 1.0)) > NOTHING
        way, other = (self._all, self._own) if wide else (self._own, self._all)
        self._latest.append((wide, ratio if way.observe() else 0.0))
        other.others += 1
        if len(self._latest) > 2 * AROUND:
            self._compare()
        if self.tries:
            self.tries -= wide is self.tries_all
        elif self._known and other.is_due:
            self.tries, self.tries_all = TRIES, not wide

    def _compare(self) -> None:
        """Compare the run in the middle of the latest ones with those in the other way on either side of it."""
        latest = list(self._latest)
        wide, ratio = latest[AROUND]
        before = _others(latest[:AROUND], wide=wide)
        behind = _others(latest[AROUND + 1 :], wide=wide)
        if ratio <= 0.0 or len(before) < FEWEST or len(behind) < FEWEST:
            return
        usual = median(before + behind)
        self._compared.append(ratio / usual if wide else usual / ratio)
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


def _others(runs: Sequence[tuple[bool, float]], *, wide: bool) -> list[float]:
    """Return the ratios of the runs in the other way that count."""
    return [ratio for way, ratio in runs if way is not wide and ratio > 0.0]
