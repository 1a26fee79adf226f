"""A GPU under the simulator: one copy engine for each direction, and multiprocessors that concurrent runs share.

`Pooled` is Ebird's memory pool (section V): inputs cross as they come, answers cross as batches end, and neither holds
a worker. `HostBatched` is what the paper found TensorFlow Serving to do (section III-A): a worker's batch is copied
together and crosses when it is launched, and its worker is free when the answers are back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from latebind.simulation.agenda import Agenda, Call
from latebind.simulation.chip import Chip, Footprint
from latebind.simulation.hardware import After, Work


class CopyEngine:
    """Copies in one direction, one at a time, in the order in which they are asked for."""

    def __init__(self, agenda: Agenda, chip: Chip) -> None:
        self._agenda = agenda
        self._chip = chip
        self._free = 0.0

    def copy(self, size: int, now: float, copied: Call, *, pieces: int = 1) -> None:
        """Copy `size` bytes in so many pieces, one after another."""
        self._free = max(now, self._free) + pieces * self._chip.copy + size / self._chip.pcie
        self._agenda.at(self._free, copied)


@dataclass(slots=True)
class Running:
    """What is on the multiprocessors: seconds of the whole card that are `left`, and the share that it can use."""

    left: float
    share: float
    ended: Call


class Multiprocessors:
    """Shared by all that run: each uses the share that it can, less in proportion where that is more than all.

    So many workers with small batches take as long together as one with all of it (Ebird, figure 6). Of more runs than
    there are multiprocessors the figure says that they take longer and its text not by how much: here by as many times
    as there are more.
    """

    def __init__(self, agenda: Agenda, count: int) -> None:
        self._agenda = agenda
        self._count = count
        self._running: list[Running] = []
        self._since = 0.0
        self._next = -1

    def begin(self, busy: float, alone: float, now: float, ended: Call) -> None:
        """Run what needs the whole card for `busy` seconds and, alone, takes the `alone` seconds, which are no less."""
        self._progress(now)
        self._running.append(Running(busy, busy / alone, ended))
        self._plan(now)

    def _speed(self) -> float:
        wanted = sum([one.share for one in self._running])
        return min(1.0, 1.0 / wanted) * min(1.0, self._count / len(self._running))

    def _progress(self, now: float) -> None:
        if self._running:
            done = self._speed() * (now - self._since)
            for one in self._running:
                one.left = max(0.0, one.left - one.share * done)
        self._since = now

    def _plan(self, now: float) -> None:
        """Expect the next end, where those that run now stay as they are."""
        self._agenda.call_off(self._next)
        if self._running:
            first = min(self._running, key=lambda one: one.left / one.share)
            self._next = self._agenda.at(now + first.left / (first.share * self._speed()), partial(self._end, first))

    def _end(self, one: Running, now: float) -> None:
        self._progress(now)
        self._running.remove(one)
        self._plan(now)
        one.ended(now)


class Card:
    """What both ways of using a card have in common: it, and what each model needs of it."""

    def __init__(self, chip: Chip, footprints: Mapping[str, Footprint], agenda: Agenda) -> None:
        self._chip = chip
        self._footprints = footprints
        self._agenda = agenda
        self._to, self._back = CopyEngine(agenda, chip), CopyEngine(agenda, chip)
        self._multiprocessors = Multiprocessors(agenda, chip.multiprocessors)

    def _compute(self, work: Work, ended: Call, now: float) -> None:
        busy = self._footprints[work.model].busy.step(work.stage, work.rows)
        self._multiprocessors.begin(busy, max(busy, work.seconds), now, ended)

    def _finish(self, after: After, now: float) -> None:
        for later, call in after:
            self._agenda.at(now + later, call)


class Pooled(Card):
    """A pool of inputs on the card; nobody waits for a copy but the request whose input or answer it is."""

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Copy each input as it comes, behind those that came before."""
        self._to.copy(rows * self._footprints[model].input_bytes, now, ready, pieces=rows)

    def run(self, work: Work, now: float, after: After) -> None:
        """Compute; the inputs are there."""
        self._compute(work, partial(self._finish, after), now)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Copy an answer back, while workers go on."""
        self._back.copy(self._footprints[model].output_bytes, now, sent)


class HostBatched(Card):
    """Batches are made on the host: copied together, then to the card, computed, and copied back, all by one worker."""

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Inputs wait on the host."""
        ready(now)

    def run(self, work: Work, now: float, after: After) -> None:
        """Copy, compute and copy back, each when the one before has ended. Dummy rows cross as others do."""
        footprint = self._footprints[work.model]
        inputs, outputs = work.rows * footprint.input_bytes, work.rows * footprint.output_bytes

        def computed(now: float) -> None:
            self._back.copy(outputs, now, partial(self._finish, after))

        def copied(now: float) -> None:
            self._compute(work, computed, now)

        def together(now: float) -> None:
            self._to.copy(inputs, now, copied)

        self._agenda.at(now + self._chip.launch + inputs / self._chip.host, together)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Answers are back when a run has ended."""
        sent(now)
