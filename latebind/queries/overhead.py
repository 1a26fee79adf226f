"""How long a query takes from the end of a step to the beginning of the next: seconds, as they were of late. Pure."""

NEWEST = 0.05  # of the mean
PAUSE = 3.0  # times the mean at most count, for the machine does other things now and then
CHANGED = 0.1  # share by which the mean is another: so long, what was worked out with `seconds` holds


class StepOverhead:
    """The mean of one query: conditions are judged, inputs written, and decisions taken."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._mean = 0.0

    def observe(self, seconds: float) -> None:
        """Hear how long it took once."""
        if self._mean:
            self._mean += NEWEST * (min(seconds, PAUSE * self._mean) - self._mean)
        else:
            self._mean = seconds
        if abs(self._mean - self.seconds) > CHANGED * self.seconds:
            self.seconds = self._mean
