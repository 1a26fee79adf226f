"""The simulated hardware: how inputs reach a worker, how long runs and loads take, how answers get back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from latebind.simulation.agenda import Agenda, Call


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


class Hardware(Protocol):
    """Makes the calls that it is given at the time that they wait for: through its agenda, or at once."""

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Transfer the inputs of a call that has arrived to where workers read them; then make the call `ready`."""

    def more(self, now: float) -> bool:
        """Return whether another call of the same model follows at once the one whose inputs have just arrived."""

    def run(self, work: Work, now: float, after: After) -> None:
        """Run a stage on a free worker; then make the calls `after`."""

    def send(self, model: str, now: float, sent: Call) -> None:
        """Send the answer of one request back; then make the call `sent`."""

    def load(self, size: int, seconds: float, now: float) -> float:
        """Return the seconds of a load of `size` bytes that starts now, where its footprint says `seconds`."""


Installed = Callable[[Agenda], Hardware]


class Independent:
    """Cores: workers that do not slow each other down, with inputs and answers in shared memory."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Inputs are readable at once."""
        ready(now)

    def more(self, now: float) -> bool:
        """Each call arrives by itself."""
        return False

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes as long as it takes alone."""
        ended = now + work.seconds
        for later, call in after:
            self._agenda.at(ended + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Answers are readable at once."""
        sent(now)

    def load(self, size: int, seconds: float, now: float) -> float:
        """A load takes the seconds of its footprint."""
        return seconds
