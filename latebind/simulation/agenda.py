"""What is going to happen on the virtual clock, and when. What is due at the same time goes by order of scheduling."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

Call = Callable[[float], None]  # is told the time


class Agenda:
    """Calls by the time (seconds) at which they are due. What is yet to come may be called off."""

    def __init__(self) -> None:
        self._counter = count()
        self._due: list[tuple[float, int]] = []
        self._calls: dict[int, Call] = {}

    def at(self, time: float, call: Call) -> int:
        """Have `call` made at `time`; returns the number by which it can be called off."""
        number = next(self._counter)
        self._calls[number] = call
        heappush(self._due, (time, number))
        return number

    def call_off(self, number: int) -> None:
        """Forget a call; one that has been made, or called off, is nothing to forget."""
        self._calls.pop(number, None)

    def go_on(self, until: float = inf) -> None:
        """Make all calls that are due by `until`, those that they schedule among them."""
        while self._due and self._due[0][0] <= until:
            time, number = heappop(self._due)
            call = self._calls.pop(number, None)
            if call is not None:
                call(time)
