"""The time between the end of a step and the start of the next, as a running mean in seconds. Pure."""

NEWEST = 0.05  # the weight of the newest value in the mean
PAUSE = 3.0  # a value counts as at most so many times the mean, because the machine is sometimes busy with other things
CHANGED = 0.1  # `seconds` follows the mean only when it differs by this share, so that cached plans stay valid


class StepOverhead:
    """The mean of one query. The time is spent on conditions, on writing inputs, and on decisions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._mean = 0.0

    def observe(self, seconds: float) -> None:
        """Add one measured time."""
        if self._mean:
            self._mean += NEWEST * (min(seconds, PAUSE * self._mean) - self._mean)
        else:
            self._mean = seconds
        if abs(self._mean - self.seconds) > CHANGED * self.seconds:
            self.seconds = self._mean
