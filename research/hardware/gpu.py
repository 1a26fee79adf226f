"""A simulated GPU: one copy engine for each direction, and multiprocessors that concurrent runs share.

`Pooled` is Ebird's memory pool (section V): inputs are copied to the card as they arrive and answers back as batches
end, and neither occupies a worker. `HostBatched` is what the paper found TensorFlow Serving to do (section III-A): a
batch is gathered on the host and copied when it is launched, and its worker is free when the answers are back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from latebind.simulation.hardware import After, Agenda, Call, Work
from research.hardware.chip import Chip, Footprint


class CopyEngine:
    """Copies in one direction, one at a time, in the order in which they are asked for."""

    def __init__(self, agenda: Agenda, chip: Chip) -> None:
        self._agenda = agenda
        self._chip = chip
        self._free = 0.0

    def copy(self, size: int, now: float, copied: Call, *, pieces: int = 1) -> None:
        """Copy `size` bytes in `pieces` pieces, one after another; then make the call `copied`."""
        self._free = max(now, self._free) + pieces * self._chip.copy + size / self._chip.pcie
        self._agenda.at(self._free, copied)


@dataclass(slots=True, eq=False)
class Running:
    """A run on the multiprocessors. It needs the whole card for `busy` seconds, of which `left` remain.

    Alone it takes `alone` seconds, so it cannot use more than the share `busy / alone` of the card.
    """

    busy: float
    alone: float
    left: float
    ended: Call


class Multiprocessors:
    """The multiprocessors, of which each run has what it can use, scaled down where that is more than all.

    So many workers with small batches take as long together as one with a batch of all (Ebird, figure 6). With more
    runs than multiprocessors, they take longer by the figure, but the text does not say by how much; here the factor is
    the number of runs over that of multiprocessors.
    """

    def __init__(self, agenda: Agenda, chip: Chip) -> None:
        self._agenda = agenda
        self._count = chip.multiprocessors
        self._running: list[Running] = []
        self._shares: list[float] = []
        self._since = 0.0
        self._next = -1

    def begin(self, busy: float, alone: float, now: float, ended: Call) -> None:
        """Start a run that needs the whole card for `busy` seconds and takes `alone` (at least `busy`) alone."""
        self._progress(now)
        self._running.append(Running(busy, alone, busy, ended))
        self._plan(now)

    def _progress(self, now: float) -> None:
        for one, share in zip(self._running, self._shares, strict=True):
            one.left = max(0.0, one.left - share * (now - self._since))
        self._since = now

    def _plan(self, now: float) -> None:
        """Schedule the end of the run that ends first if no other starts."""
        self._agenda.cancel(self._next)
        count = max(1, len(self._running))
        wanted = [one.busy / one.alone for one in self._running]
        self._shares = [share / max(1.0, sum(wanted)) * min(1.0, self._count / count) for share in wanted]
        if self._running:
            pairs = zip(self._running, self._shares, strict=True)
            seconds, first = min(((one.left / share, one) for one, share in pairs), key=lambda pair: pair[0])
            self._next = self._agenda.at(now + seconds, partial(self._end, first))

    def _end(self, one: Running, now: float) -> None:
        self._progress(now)
        self._running.remove(one)
        self._plan(now)
        one.ended(now)


class Card:
    """The base of both ways to use a card: its engines, and what each model needs of it."""

    def __init__(self, chip: Chip, footprints: Mapping[str, Footprint], agenda: Agenda) -> None:
        self._chip = chip
        self._footprints = footprints
        self._agenda = agenda
        self._to, self._back = CopyEngine(agenda, chip), CopyEngine(agenda, chip)
        self._multiprocessors = Multiprocessors(agenda, chip)

    def more(self, now: float) -> bool:
        """Each call arrives by itself."""
        return False

    def load(self, size: int, seconds: float, now: float) -> float:
        """A load takes the seconds of its footprint."""
        return seconds

    def _compute(self, work: Work, ended: Call, now: float) -> None:
        busy = self._footprints[work.model].busy.step(work.stage, work.rows)
        self._multiprocessors.begin(busy, max(busy, work.seconds), now, ended)

    def _finish(self, after: After, now: float) -> None:
        for later, call in after:
            self._agenda.at(now + later, call)


class Pooled(Card):
    """A pool of inputs on the card; only the request whose input or answer is copied waits for the copy."""

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """Copy each input as it arrives, after those that arrived before."""
        self._to.copy(rows * self._footprints[model].input_bytes, now, ready, pieces=rows)

    def run(self, work: Work, now: float, after: After) -> None:
        """Compute; the inputs are on the card already."""
        self._compute(work, partial(self._finish, after), now)

    def send(self, model: str, now: float, sent: Call) -> None:
        """Copy an answer back, while workers go on."""
        self._back.copy(self._footprints[model].output_bytes, now, sent)


class HostBatched(Card):
    """Batches are gathered on the host, copied to the card, computed, and copied back, all by one worker."""

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
