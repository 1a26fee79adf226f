"""When to load something again after its load has failed. Pure."""

from math import inf
from typing import Generic, TypeVar

Name = TypeVar("Name")

MOST_BACK_OFF = 60.0  # seconds


class BackOff(Generic[Name]):
    """Exponential back-off: `first` seconds after one failure, twice as long after each further one in a row."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures: dict[Name, tuple[int, float]] = {}  # failures in a row, and the time of the next attempt

    def failed(self, name: Name, now: float) -> None:
        """Note that a load has failed."""
        times = self._failures.get(name, (0, 0.0))[0] + 1
        self._failures[name] = times, now + min(MOST_BACK_OFF, self._first * 2.0 ** (times - 1))

    def loaded(self, name: Name) -> None:
        """Note that a load has succeeded."""
        self._failures.pop(name, None)

    def is_on(self, name: Name, now: float) -> bool:
        """Return whether it is too early for the next attempt."""
        return now < self._failures.get(name, (0, -inf))[1]
