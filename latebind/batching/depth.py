"""How sure the learned caches of a model must be: the level of its operating curve, by the time available. Pure.

A request gets its level when it starts, before anything is known of its row, and keeps it. So the rows that run at a
level are a fair sample of all rows, and what calibration has shown of the level holds for them, whatever the load. If a
level could fall at a later lookup, it would fall only for requests that have not left by then, which are the hard ones,
and nothing would bound the share of wrong answers among these.

The level is the surest at which all that wait are in time, by two conditions: the work that waits, stretched by what
the level costs more than the lowest one, still ends before each deadline; and at the rate at which requests come, the
workers have that much time. (SuperServe, Khare et al. 2023, goes only by the slack of the most urgent request.)

If not even the lowest level is enough, some requests cannot be answered. One that is dropped before its start might
have left at the first lookup; one that is dropped at a lookup has not left there, and takes the most work. So most are
answered if all start and those that do not leave are dropped. But these would have been right, so of the answers more
are wrong. So requests then run at the *overload* level, with the promise of the lowest level and the thresholds of the
next surer one, which leaves room for a share to be dropped. Once that is used up, requests start as at other levels,
with time for the whole network, until there is room again: the share is exceeded by no more than `SAVED` and the
requests under way, which are the misses of about one deadline, and the excess is made up for before more are dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from latebind.batching.costs import Estimate

NO_LEVEL = -1  # for requests of models without an operating curve

# What was tuned, by simulation (`research load`).
COUNTED_ON = 0.3  # of the time until a deadline: costs are means. 0.7: 2 to 4 % fewer in time where deadlines are short
BUSY = 0.8  # of the workers' time that requests may take as they come; 0.9 and 0.75: fewer in time or less sure at 60 %
LATEST_STARTED = 1000  # requests, after which the counts of the share below the target are halved
PAYS = 1.02  # times as many must be answered at the overload level as at the lowest one for it to be chosen
SAVED = 16.0  # requests that may be dropped at once, if fewer than allowed were dropped before


class Misses(NamedTuple):
    """What requests take at the overload level: seconds of a worker, the mean over all that start.

    It is `begun` until the first exit, and `rest` after it for the share `missing` that does not leave there. At most a
    share `dropped` of all is dropped.
    """

    dropped: float
    missing: float
    begun: float
    rest: float

    def answered(self, free: float) -> float:
        """Return the share of requests that is answered if each may take `free` seconds."""
        most = min(self.dropped, self.missing)
        dropped = min(most, max(0.0, (self.begun + self.rest - free) * self.missing / max(self.rest, 1e-9)))
        takes = self.begun + self.rest * (1.0 - dropped / max(self.missing, 1e-9))
        return (1.0 - dropped) * min(1.0, free / max(takes, 1e-9))


class Depth:
    """Chooses the level of one model's requests, the lower the more waits; `below` is the largest share under `target`.

    `level`, one of `levels`, was chosen last. Figures of the `estimate` are for the `lowest` level, except while a
    policy decides. After the levels there is one for overload if a share `dropped` of its requests may be dropped.
    """

    def __init__(self, estimate: Estimate, levels: int, target: int, below: float, dropped: float = 0.0) -> None:
        self._estimate = estimate
        self._calibrated = self._target = target
        self.levels = levels  # that requests may start at
        self.overload = levels if dropped else NO_LEVEL  # its thresholds are those of the last level but one
        self._share, self._may_drop = dropped, SAVED  # requests that may be dropped now
        self._below = below
        self._started = self._started_below = 0.0
        self._batch = 1  # requests that started together last
        self.level = target
        self.estimate_lowest()

    @property
    def lowest(self) -> int:
        """The lowest level that a request may have now."""
        return self.levels - 1 if self._may_be_below(self._batch) else self._target

    def estimate_lowest(self) -> None:
        """Set figures to those of the lowest level: requests that could be in time at it are not refused."""
        self._estimate.at_level(self.lowest)

    def limit(self, levels: int) -> None:
        """Let requests start only at the first `levels` levels from now on (`domain.events.Limited`)."""
        self.levels = levels
        self._target = min(self._calibrated, levels - 1)
        self.level = min(self.level, levels - 1)
        self.estimate_lowest()

    def choose(self, works: Sequence[float], stretch: float, free: float, misses: Misses | None = None) -> None:
        """Choose the level and set figures to those of it, until `estimate_lowest`.

        `works` has the seconds of a worker that a request takes, by level. The work of all that wait may be `stretch`
        times as long as at the lowest level, and at the current rate a request may take `free` seconds of the workers.
        If that is less than the lowest level takes, the overload level is chosen if more are answered, by `misses`.
        """
        lowest = self.lowest
        most = min(COUNTED_ON * stretch * works[lowest], BUSY * free)
        self.level = next((level for level in range(lowest) if works[level] <= most), lowest)
        if works[lowest] > most and misses is not None and self._may_overload:
            free *= BUSY
            if misses.answered(free) > PAYS * min(1.0, free / works[lowest]):
                self.level = self.overload
        self._estimate.at_level(self.level)

    @property
    def may_drop(self) -> bool:
        """Whether requests that start now may be dropped later."""
        return self.level == self.overload and self._may_drop >= 1.0

    def drop(self, level: int) -> None:
        """Note that a request was dropped that had started at this level."""
        self._may_drop -= level == self.overload

    def take(self, level: int) -> None:
        """Take a level that a policy has chosen by a rule of its own, or the lowest if that is not allowed."""
        self.level = min(level, self.lowest)
        self._estimate.at_level(self.level)

    def own(self, surest: int) -> int:
        """Return the level of a request that may run at no surer one than this: the one chosen last or a lower one."""
        return self._of(surest, self.lowest)

    def _of(self, surest: int, lowest: int) -> int:
        """Return the level of such a request; the overload level counts as the last but one."""
        level = min(self.level, lowest) if self.level == self.overload and surest > self.levels - 2 else self.level
        return max(level, min(surest, lowest))

    def start(self, surest: Sequence[int]) -> list[int]:
        """Return the levels of requests that start together, each to run at no surer one than its own.

        They are those chosen last, but not below the target if too many would be.
        """
        most = self.levels - 1 if self._may_be_below(len(surest)) else self._target
        if self.level != self.overload or most < self.levels - 1:
            self.level = min(self.level, most)
        self._batch = len(surest)
        found = [self._of(one, most) for one in surest]
        if self.level == self.overload:
            self._may_drop = min(SAVED, self._may_drop + self._share * found.count(self.overload))
        self._started += len(surest)
        self._started_below += sum([min(level, self.levels - 1) > self._target for level in found])
        if self._started > LATEST_STARTED:
            self._started, self._started_below = 0.5 * self._started, 0.5 * self._started_below
        return found

    @property
    def _may_overload(self) -> bool:
        return self.levels == self.overload and self.lowest == self.levels - 1

    def _may_be_below(self, requests: int) -> bool:
        """Return whether `requests` requests may start below the target."""
        return self._started_below + requests <= self._below * (self._started + requests)
