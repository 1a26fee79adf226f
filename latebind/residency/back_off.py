"""Models whose last load has failed: when to try again. Pure."""

from math import inf

MOST_BACK_OFF = 60.0  # seconds


class BackOff:
    """`first` seconds after one failure, twice as long after each more in a row."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures: dict[str, tuple[int, float]] = {}  # how often in a row, and when to try again

    def failed(self, name: str, now: float) -> None:
        """Hear that a load has failed."""
        times = self._failures.get(name, (0, 0.0))[0] + 1
        self._failures[name] = times, now + min(MOST_BACK_OFF, self._first * 2.0 ** (times - 1))

    def loaded(self, name: str) -> None:
        """Hear that one has not."""
        self._failures.pop(name, None)

    def is_on(self, name: str, now: float) -> bool:
        """Tell whether it is too early to try again."""
        return now < self._failures.get(name, (0, -inf))[1]
