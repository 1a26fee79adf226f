"""When to load a model again after its load has failed. Pure."""

from math import inf

MOST_BACK_OFF = 60.0  # seconds


class BackOff:
    """Exponential back-off: `first` seconds after one failure, twice as long after each further one in a row."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures: dict[str, tuple[int, float]] = {}  # failures in a row, and the time of the next attempt

    def failed(self, name: str, now: float) -> None:
        """Note that a load has failed."""
        times = self._failures.get(name, (0, 0.0))[0] + 1
        self._failures[name] = times, now + min(MOST_BACK_OFF, self._first * 2.0 ** (times - 1))

    def loaded(self, name: str) -> None:
        """Note that a load has succeeded."""
        self._failures.pop(name, None)

    def is_on(self, name: str, now: float) -> bool:
        """Return whether it is too early for the next attempt."""
        return now < self._failures.get(name, (0, -inf))[1]
