"""The virtual clock and the simulated hardware: how inputs reach a worker, how long runs take, how answers get back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

Call = Callable[[float], None]  # takes the time


class Agenda:
    """Scheduled calls by the time (seconds) at which they are due; simultaneous ones in the order of scheduling."""

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
        """Cancel a call; nothing happens if it has been made or cancelled already."""
        self._calls.pop(number, None)

    def run_until(self, until: float = inf) -> None:
        """Make all calls that are due by `until`, including those that they schedule."""
        while self._due and self._due[0][0] <= until:
            time, number = heappop(self._due)
            call = self._calls.pop(number, None)
            if call is not None:
                call(time)


@dataclass(frozen=True, slots=True)
class Work:
    """One run of a stage: `rows` of `model` on `worker`, which takes `seconds` if nothing else runs.

    That is `longer` times the seconds with inputs of typical length.
    """

    worker: int
    model: str
    stage: int
    rows: int
    seconds: float
    longer: float = 1.0


After = Sequence[tuple[float, Call]]  # calls to make a number of seconds after the end of a run


class Hardware:
    """Makes the calls that it is given when they are due: through its agenda, or immediately.

    This one models cores: workers that do not slow each other down, with inputs and answers in shared memory.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Transfer the inputs of a call that has arrived to where workers read them; then make the call `ready`."""
        ready(now)

    def run(self, work: Work, now: float, after: After) -> None:
        """Run a stage on a free worker; then make the calls `after`."""
        for later, call in after:
            self._agenda.at(now + work.seconds + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Send the answer of one request back; then make the call `sent`."""
        sent(now)


Installed = Callable[[Agenda], Hardware]
