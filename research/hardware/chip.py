"""A cost model of a GPU by layers, and the six networks of Ebird's evaluation (table III) on the card that it used.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from research.hardware.npu import Product
from research.hardware.vision import Block, inception_v4, plain, residual

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
        return ServedModel(spec, ModelCosts((self._curve(chip.seconds),)), max_queued=1 << 30)

    def footprint(self, chip: Chip) -> "Footprint":
        """Return how much of the card's time and of the PCIe link the network uses."""
        busy = ModelCosts((self._curve(chip.busy),))
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
