"""How sure the learned caches of a model must be: the level of its operating curve, by the time that there is. Pure.

A request gets its level when it starts, before anything is known of its row, and keeps it. So those that run at a level
are a sample of all requests as far as their rows go, and what calibration has shown of the level holds for them,
whatever the load was. If a level could fall at a later lookup, it would fall for those alone that have not left by
then, which are the hard ones, and a share of these would be wrong that nothing has bounded.

The level is the surest that leaves all who wait in time, by two conditions: the work that waits, stretched by what the
level costs more than the lowest one, still ends before each deadline; and at the rate at which requests come, the
workers have that much time. (SuperServe, Khare et al. 2023, goes by the slack of the most urgent request alone.) Where
not even the lowest level is enough, requests are refused or shed as without levels.
"""

from collections.abc import Sequence

from latebind.batching.costs import Estimate

# What was tuned, by simulation (`research load`).
COUNTED_ON = 0.3  # of the time until a deadline: costs are means. 0.7: 2 to 4 % fewer in time where deadlines are short
BUSY = 0.8  # of the workers' time that requests may take as they come; 0.9 and 0.75: fewer in time or less sure at 60 %
LATEST_STARTED = 1000  # requests that count in the share below the target; half of them less each time so many started


class Depth:
    """Chooses the level of one model's requests, the lower the more waits; `below` is the largest share under `target`.

    `level`, of so many `levels`, was chosen last. Figures of the `estimate` are for the `lowest` level, except while a
    policy decides.
    """

    def __init__(self, estimate: Estimate, levels: int, target: int, below: float) -> None:
        self._estimate = estimate
        self._calibrated = self._target = target
        self.levels = levels  # that requests may start at
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
        """Let figures be those of the lowest level: whoever could be in time at it is not refused."""
        self._estimate.at_level(self.lowest)

    def limit(self, levels: int) -> None:
        """Let requests start only at the first so many levels from now on (`domain.events.Limited`)."""
        self.levels = levels
        self._target = min(self._calibrated, levels - 1)
        self.level = min(self.level, levels - 1)
        self.estimate_lowest()

    def choose(self, works: Sequence[float], stretch: float, free: float) -> None:
        """Choose the level and let figures be those of it, until `estimate_lowest`.

        `works` has the seconds that a request takes of a worker by level. Those of all that wait may be `stretch` times
        as long as at the lowest one, and a request may take `free` seconds of the workers' time as they come.
        """
        lowest = self.lowest
        most = min(COUNTED_ON * stretch * works[lowest], BUSY * free)
        self.level = next((level for level in range(lowest) if works[level] <= most), lowest)
        self._estimate.at_level(self.level)

    def take(self, level: int) -> None:
        """Take a level that a policy has chosen by a rule of its own, or the lowest where that may not be."""
        self.level = min(level, self.lowest)
        self._estimate.at_level(self.level)

    def own(self, surest: int) -> int:
        """Return the level of a request that is to run at no surer one than this: the one chosen last, or a lower."""
        return max(self.level, min(surest, self.lowest))

    def start(self, surest: Sequence[int]) -> list[int]:
        """Return the levels of requests that start together, each to run at no surer one than its own.

        They are those chosen last, or at most the target where too many would be below it.
        """
        most = self.levels - 1 if self._may_be_below(len(surest)) else self._target
        self.level, self._batch = min(self.level, most), len(surest)
        found = [max(self.level, min(one, most)) for one in surest]
        self._started += len(surest)
        self._started_below += sum([level > self._target for level in found])
        if self._started > LATEST_STARTED:
            self._started, self._started_below = 0.5 * self._started, 0.5 * self._started_below
        return found

    def _may_be_below(self, requests: int) -> bool:
        """Return whether so many may start below the target."""
        return self._started_below + requests <= self._below * (self._started + requests)
