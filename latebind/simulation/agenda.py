"""The event queue of the virtual clock. Calls that are due at the same time are made in the order of scheduling."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

Call = Callable[[float], None]  # takes the time


class Agenda:
    """Scheduled calls by the time (seconds) at which they are due."""

    def __init__(self) -> None:
        self._counter = count()
        self._due: list[tuple[float, int]] = []
        self._calls: dict[int, Call] = {}

    def at(self, time: float, call: Call) -> int:
        """Schedule `call` at `time`; return the number by which it can be cancelled."""
        number = next(self._counter)
        self._calls[number] = call
        heappush(self._due, (time, number))
        return number

    def cancel(self, number: int) -> None:
        """Cancel a call; nothing happens where it has been made or cancelled already."""
        self._calls.pop(number, None)

    def run_until(self, until: float = inf) -> None:
        """Make all calls that are due by `until`, including those that they schedule."""
        while self._due and self._due[0][0] <= until:
            time, number = heappop(self._due)
            call = self._calls.pop(number, None)
            if call is not None:
                call(time)
