"""How launches differ from their profile where they are served, learned from those seen: a line, fitted as they come.

A profile is taken in a loop and at another time. A machine that others share is slower or quicker all over (`factor`);
and each launch takes a while whatever its batch (`launch`): the core was idle, caches are cold, events and replies.
"""

LATEST = 1 / 32  # how much the latest launch counts in an average; the first ones more, as one of all so far
DOUBT = 0.1  # as a share of what launches take: so far apart must they be to tell the factor from the launch
LONGEST = 3.0  # times what a launch should take: whatever is longer was held up by others on the machine
SLOWER = 0.02  # share by which all launches take longer or shorter when what follows is worked out anew
CHANGED = 0.1  # share by which what a launch costs has changed, likewise
RELENT = 0.1  # of what was learned is forgotten with a request that it keeps out of an idle engine, then twice as much
LEAST = 0.1  # times the profile's seconds
NOTHING = 1e-6  # seconds: less than that is rounding


class Pace:
    """Seconds are `factor` times those of the profile and `launch` more for each launch; in a simulation, as profiled.

    `least` is the least that a launch may be taken to cost, times the factor; below 0, for a profile may be of a slower
    moment. It is at most half of the shortest launch.
    """

    def __init__(self, least: float) -> None:
        self.factor = 1.0
        self.launch = 0.0
        self.known = False  # whether anything has differed
        self.changes = 0  # how often so much that what has followed from it is to be worked out anew
        self._then = 1.0, 0.0  # factor and launch at the last of them
        self._least = least
        self.heard = 1  # launches that differed, and what the profile says
        self._relents = RELENT  # what the next request that is kept out of an idle engine makes forgotten
        self._expected = self._seen = 0.0  # averages
        self._variance = self._covariance = 0.0

    @property
    def level(self) -> float:
        """What launches take on average, as a share of what they would if they cost nothing but the factor."""
        alone = self.factor * self._expected
        return self._seen / alone if alone else 1.0

    def observe(self, expected: float, seconds: float) -> None:
        """Hear that a launch took so long, where the profile says `expected`."""
        if not self.known:
            if abs(seconds - expected) <= NOTHING:
                return
            self.known = True
            self._expected = self._seen = expected
        self.heard += 1
        self._relents = RELENT
        latest = 1.0 / self.heard
        if latest <= LATEST:
            latest, seconds = LATEST, min(seconds, LONGEST * (self.factor * expected + self.launch))
        apart, other = expected - self._expected, seconds - self._seen
        self._expected += latest * apart
        self._seen += latest * other
        self._variance = (1.0 - latest) * (self._variance + latest * apart * apart)
        self._covariance = (1.0 - latest) * (self._covariance + latest * apart * other)
        self._fit()

    def relent(self) -> None:
        """Believe it less: somebody was refused for it while nothing ran, so that nothing else can teach better.

        Twice as much less each time until a launch is seen: what held for a crowded machine may not hold any more.
        """
        if self.known:
            self.heard += 1
            self._seen += self._relents * (self._expected - self._seen)
            self._covariance += self._relents * (self._variance - self._covariance)
            self._relents = min(1.0, 2.0 * self._relents)
            self._fit()

    def _fit(self) -> None:
        factor, expected, (then, cost) = self.factor, self._expected, self._then
        doubt = DOUBT * DOUBT * expected * expected
        if doubt:
            factor = max(LEAST, (self._covariance + doubt) / (self._variance + doubt))
        launch = self._seen - factor * expected
        if launch < factor * self._least:  # the profile is of a slower machine: the factor has to say so
            factor = max(LEAST, self._seen / max(0.5 * expected, expected + self._least))
            launch = factor * self._least
        self.factor, self.launch = factor, launch
        if abs(factor - then) > SLOWER * then or abs(launch - cost) > CHANGED * abs(cost):
            self.changes += 1
            self._then = factor, launch
