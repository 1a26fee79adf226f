"""How long launches take compared with their profile: a line, fitted online to the launches observed.

A profile is taken in a loop, at another time. On a shared machine everything is slower or quicker by a `factor`. Each
launch also has a fixed cost (`launch`) whatever its batch: the core was idle, caches are cold, events and replies.
"""

from collections.abc import Container

LATEST = 1 / 32  # weight of the latest launch in averages; for the first launches 1 / their number, which is more
DOUBT = 0.1  # share of the mean by which launches must differ in length before factor and fixed cost are told apart
LONGEST = 3.0  # times the predicted seconds; a longer launch was held up by others on the machine and is cut to this
SLOWER = 0.02  # relative change of the factor at which derived figures are recomputed
CHANGED = 0.1  # relative change of the fixed cost at which derived figures are recomputed
UNSEEN = 4  # launches as the line says that a batch size counts as having had
SURPRISE = 0.2  # of a size's share: by more one launch does not differ, or a pause would keep a rare size from running
BETWEEN = 0  # stands for all batch sizes that were not profiled
LEAST = 0.1  # the lowest factor
NOTHING = 1e-6  # seconds; less than that is rounding


class Pace:
    """A launch takes `factor` times the profile's seconds, plus `launch` seconds. In a simulation: as profiled.

    `least` times the factor is the lowest fixed cost that is believed. It is below 0, because the profile may have been
    taken at a slower moment, and at most half of the shortest launch.
    """

    def __init__(self, least: float) -> None:
        self.factor = 1.0
        self.launch = 0.0
        self.known = False  # whether any launch has differed from the profile
        self.changes = 0  # counts changes that are large enough to recompute derived figures
        self._then = 1.0, 0.0  # factor and launch at the last such change
        self._least = least
        self.observed = 1  # changes whenever factor or fixed cost may have
        self.doubted = False  # whether nothing that was observed counts any more
        self._launches = 1  # the observed launches that count, the profile counting as one
        self._expected = self._seen = 0.0  # average seconds by the profile, and as observed
        self._variance = self._covariance = 0.0

    @property
    def level(self) -> float:
        """The average seconds of launches, over what they would take without the fixed cost."""
        alone = self.factor * self._expected
        return self._seen / alone if alone else 1.0

    def observe(self, expected: float, seconds: float) -> None:
        """Note that a launch took `seconds`, where the profile says `expected`."""
        if self.doubted:
            self.doubted, self.known, self._launches = False, True, 0
            self.factor = 1.0
        elif not self.known:
            if abs(seconds - expected) <= NOTHING:
                return
            self.known = True
            self._expected = self._seen = expected
        self.observed += 1
        self._launches += 1
        latest = 1.0 / self._launches
        if latest <= LATEST:
            latest, seconds = LATEST, min(seconds, LONGEST * (self.factor * expected + self.launch))
        apart, other = expected - self._expected, seconds - self._seen
        self._expected += latest * apart
        self._seen += latest * other
        self._variance = (1.0 - latest) * (self._variance + latest * apart * apart)
        self._covariance = (1.0 - latest) * (self._covariance + latest * apart * other)
        self._fit()

    def doubt(self) -> None:
        """Believe the lowest factor until the next launch, which then counts alone.

        Where an estimate is too high for requests to be accepted, no launch corrects it. What held for a crowded
        machine may not hold any more, and the profile may have been taken on one.
        """
        self.observed += 1
        self.changes += 1
        self.doubted = True
        self.factor, self.launch = self._then = LEAST, 0.0

    def _fit(self) -> None:
        factor, expected, (then, cost) = self.factor, self._expected, self._then
        doubt = DOUBT * DOUBT * expected * expected
        if doubt:
            factor = max(LEAST, (self._covariance + doubt) / (self._variance + doubt))
        launch = self._seen - factor * expected
        if launch < factor * self._least:  # the profile was taken at a slower moment, so the factor has to be lower
            factor = max(LEAST, self._seen / max(0.5 * expected, expected + self._least))
            launch = factor * self._least
        self.factor, self.launch = factor, launch
        if abs(factor - then) > SLOWER * then or abs(launch - cost) > CHANGED * abs(cost):
            self.changes += 1
            self._then = factor, launch


class PaceBySize:
    """How much longer than by the line (`Pace`) launches of each batch size take; 1 for a size that was never launched.

    A line does not fit all sizes: libraries run some of them by code of their own, and a size that differs from the
    last one finds less in the caches, while a profile repeats each size. Sizes that are not `profiled` have one share
    together: code that takes any size runs them all, and each by itself is too rare to be known.
    """

    def __init__(self, profiled: Container[int]) -> None:
        self.changes = 0  # counts changes that are large enough to recompute derived figures
        self._profiled = profiled
        self._shares: dict[int, float] = {}
        self._then: dict[int, float] = {}  # the shares at the last such changes
        self._launches: dict[int, int] = {}

    def observe(self, batch: int, ratio: float) -> None:
        """Note that a launch took `ratio` times what the line says."""
        size = batch if batch in self._profiled else BETWEEN
        launches = self._launches[size] = self._launches.get(size, UNSEEN) + 1
        share = self._shares.get(size, 1.0)
        surprise = max(-SURPRISE, min(ratio / share - 1.0, SURPRISE))
        share *= 1.0 + max(LATEST, 1.0 / launches) * surprise
        self._shares[size] = share
        if abs(share - self._then.get(size, 1.0)) > SLOWER:
            self.changes += 1
            self._then[size] = share

    def share(self, batch: int) -> float:
        """Return how many times as long as by the line a launch of this size takes."""
        return self._then.get(batch if batch in self._profiled else BETWEEN, 1.0)
