"""What requests run on, in the simulator: how inputs get there, how long runs take, how answers come back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from latebind.simulation.agenda import Agenda, Call


@dataclass(frozen=True, slots=True)
class Work:
    """One run of a stage: `rows` of `model` on `worker`, `seconds` if nothing else ran.

    That is `longer` times what inputs of typical length would take.
    """

    worker: int
    model: str
    stage: int
    rows: int
    seconds: float
    longer: float = 1.0


After = Sequence[tuple[float, Call]]  # what is to happen so many seconds after an end


class Hardware(Protocol):
    """Makes the calls that it is given when what they wait for has happened, over its agenda or at once."""

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Bring the inputs of a call that has come to where workers look for them."""

    def more(self, now: float) -> bool:
        """Tell of the call whose inputs have just come whether another of its model is told of at once behind it."""

    def run(self, work: Work, now: float, after: After) -> None:
        """Run a stage on a worker that is free."""

    def send(self, model: str, now: float, sent: Call) -> None:
        """Send the answer of one request, which has run, back."""

    def load(self, size: int, seconds: float, now: float) -> float:
        """Return what a load of so many bytes takes that begins now, where its footprint says `seconds`."""


Installed = Callable[[Agenda], Hardware]


class Independent:
    """Workers that do not feel each other, with inputs and answers in the memory that everybody uses: cores."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Inputs are there as soon as they come."""
        ready(now)

    def more(self, now: float) -> bool:
        """Each comes by itself."""
        return False

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes what it takes alone."""
        ended = now + work.seconds
        for later, call in after:
            self._agenda.at(ended + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Answers are where they are read."""
        sent(now)

    def load(self, size: int, seconds: float, now: float) -> float:
        """A load takes what its footprint says."""
        return seconds
