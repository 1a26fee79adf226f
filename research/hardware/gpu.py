"""A simulated GPU: one copy engine for each direction, and multiprocessors that concurrent runs share.

`Pooled` is Ebird's memory pool (section V): inputs are copied to the card as they arrive and answers back as batches
end, and neither occupies a worker. `HostBatched` is what the paper found TensorFlow Serving to do (section III-A): a
batch is gathered on the host and copied when it is launched, and its worker is free when the answers are back.

Its costs are counted by layers, for the six networks of Ebird's evaluation (table III) on the card that it used.
Nothing here was measured on this card. Each field of `Chip` has its source beside it. Where the paper does not give a
figure, one is assumed:

* All networks reach the same share of the card's peak arithmetic rate. With one half, a batch of 32 takes 0.93 to 1.15
  times what a third of a training step takes in TensorFlow 1.12 on this card (Lambda, 2019: ResNet-50 330, ResNet-152
  129, Inception-v4 96 images a second in FP32). A forward pass is about a third of a training step.
* No layer takes less than `least`, the time to launch its operators one by one. For ResNet-50 that adds up to 5 ms, for
  ResNet-152 to 16 ms.
* A batch uses a constant share of the card while it runs: the average that its arithmetic and its weights need.
* Concurrent batches that together could use more than all of the card get on in proportion to what each could use. The
  paper does not say how they share it.
* Copies between host and card run at `pcie` bytes a second in both directions, even if the server does not use
  page-locked memory.
* A server that batches on the host copies all inputs into one tensor (figure 1) at `host` bytes a second, and needs
  `launch` seconds for everything else between two batches (figure 3, whose axes the text does not explain).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.hardware import After, Agenda, Call, Hardware, Work
from research.hardware.npu import Block, Product, inception_v4, plain, residual

FLOAT = 4  # bytes
CLASSES = 1000
LARGEST = 32  # Ebird, section III-A


@dataclass(frozen=True, slots=True)
class Chip:
    """The rates and latencies of a GPU and of its PCIe link, in seconds and bytes. Default: a Titan RTX on PCIe 3.0."""

    flops: float = 16.3e12  # a second, FP32: 4,608 cores at 1.77 GHz (NVIDIA, data sheet)
    reached: float = 0.5  # of them
    memory: float = 672e9  # bytes a second (the same)
    least: float = 100e-6  # of a layer, assumed
    multiprocessors: int = 72  # Ebird, table III
    pcie: float = 12e9  # bytes a second, of 15.75e9 by the standard; assumed
    copy: float = 3.9e-6  # of each copy: less than a millisecond more in 256 pieces (Ebird, section V-C)
    host: float = 6e9  # bytes a second of one thread that copies in the host's memory, assumed
    launch: float = 1e-3  # assumed

    def busy(self, layer: Product, batch: int) -> float:
        """Return the seconds that a layer would take if it used the whole card."""
        arithmetic = 2 * layer.depth * layer.width * layer.rows * batch / (self.flops * self.reached)
        return max(arithmetic, FLOAT * layer.depth * layer.width / self.memory)

    def seconds(self, layer: Product, batch: int) -> float:
        """Return the seconds that a layer takes when nothing else runs on the card."""
        return max(self.least, self.busy(layer, batch))


TITAN_RTX = Chip()


@dataclass(frozen=True, slots=True)
class ImageNetwork:
    """The layers of an image network in order, and the side length of its square input images (three channels)."""

    name: str
    blocks: Callable[[], list[Block]]
    side: int = 224

    def layers(self) -> Iterator[Product]:
        """Yield the layers one by one."""
        for block in self.blocks():
            yield from block

    def served(self, chip: Chip) -> ServedModel:
        """Return the network as the scheduler sees it: one stage, because no policy here acts between layers."""
        image, scores = (
            TensorSpec("image", "float32", (3, self.side, self.side)),
            TensorSpec("scores", "float32", (CLASSES,)),
        )
        spec = ModelSpec(self.name, "1", (image,), (scores,), 1, LARGEST)
        return ServedModel(spec, ModelCosts(at_any_length(self._curve(chip.seconds))), max_queued=1 << 30)

    def footprint(self, chip: Chip) -> "Footprint":
        """Return how much of the card's time and of the PCIe link the network uses."""
        busy = ModelCosts(at_any_length(self._curve(chip.busy)))
        return Footprint(busy, FLOAT * 3 * self.side**2, FLOAT * CLASSES)

    def _curve(self, of: Callable[[Product, int], float]) -> Curve:
        layers = list(self.layers())
        batches = tuple(range(1, LARGEST + 1))
        return Curve(batches, tuple(sum(of(layer, batch) for layer in layers) for batch in batches))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model uses of a card: `busy` is the time of the whole card by stage and batch size, the others are bytes.

    A request copies `input_bytes` to the card and `output_bytes` back.
    """

    busy: ModelCosts
    input_bytes: int
    output_bytes: int


SIX = {
    network.name: network
    for network in (
        ImageNetwork("inception-v4", inception_v4, 299),
        ImageNetwork("resnet50", lambda: residual((3, 4, 6, 3))),
        ImageNetwork("resnet101", lambda: residual((3, 4, 23, 3))),
        ImageNetwork("resnet152", lambda: residual((3, 8, 36, 3))),
        ImageNetwork("vgg16", lambda: plain((2, 2, 3, 3, 3))),
        ImageNetwork("vgg19", lambda: plain((2, 2, 4, 4, 4))),
    )
}


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


class Card(Hardware):
    """The base of both ways to use a card: its engines, and what each model needs of it."""

    def __init__(self, chip: Chip, footprints: Mapping[str, Footprint], agenda: Agenda) -> None:
        self._chip = chip
        super().__init__(agenda)
        self._footprints = footprints
        self._to, self._back = CopyEngine(agenda, chip), CopyEngine(agenda, chip)
        self._multiprocessors = Multiprocessors(agenda, chip)

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
