"""A GPU as a cost model of layers, and the six networks of Ebird's evaluation (table III) on the card that it used.

Nothing here is measured on this card. Each figure of `Chip` has its source beside it; what the paper leaves open is
assumed, and said to be:

* All networks reach the same share of the peak. With half of it, batches of 32 run at 0.93 to 1.15 times three times
  the rate at which TensorFlow 1.12 trains on this card (Lambda, 2019: ResNet-50 330, ResNet-152 129, Inception-v4 96
  images a second in FP32): a forward pass is about a third of a step.
* No layer takes less than `least`, the time to launch its operators one by one: 5 ms for ResNet-50, 16 for ResNet-152.
* A batch uses, on average over its run, the share of the card that its arithmetic and its weights need. It has no
  phases that use more or less.
* How several share it is one of two rules (`Sharing`). The paper's text does not say which is nearer: that kernels of
  one worker wait for those of another that fill the card (section VIII-D) speaks for the second.
* Copies run at `pcie` in either direction, also where a server does not lock its pages.
* A server that batches on the host copies inputs into one tensor (figure 1) at `host`, and needs `launch` for all
  else between two batches (figure 3, whose axes are not in the text).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.npu import Product
from latebind.simulation.vision import Block, inception_v4, plain, residual

FLOAT = 4  # bytes
CLASSES = 1000
LARGEST = 32  # Ebird, section III-A


class Sharing(StrEnum):
    """How runs share the card when they want more than all of it."""

    IN_PROPORTION = "in proportion"  # to what each could use
    LAYER_BY_LAYER = "layer by layer"  # each gets on by as much of its network


@dataclass(frozen=True, slots=True)
class Chip:
    """What a GPU and the way to it can do; the figures are those of a Titan RTX on PCIe 3.0. Seconds and bytes."""

    flops: float = 16.3e12  # a second, FP32: 4,608 cores at 1.77 GHz (NVIDIA, data sheet)
    reached: float = 0.5  # of them
    memory: float = 672e9  # bytes a second (the same)
    least: float = 100e-6  # of a layer, assumed
    multiprocessors: int = 72  # Ebird, table III
    pcie: float = 12e9  # bytes a second, of 15.75e9 by the standard; assumed
    copy: float = 3.9e-6  # of each copy: less than a millisecond more in 256 pieces (Ebird, section V-C)
    host: float = 6e9  # bytes a second of one thread that copies in the host's memory, assumed
    launch: float = 1e-3  # assumed
    sharing: Sharing = Sharing.IN_PROPORTION

    def busy(self, layer: Product, batch: int) -> float:
        """Return the seconds for which the whole card is busy with a layer."""
        arithmetic = 2 * layer.depth * layer.width * layer.rows * batch / (self.flops * self.reached)
        return max(arithmetic, FLOAT * layer.depth * layer.width / self.memory)

    def seconds(self, layer: Product, batch: int) -> float:
        """Return the seconds of a layer that runs alone."""
        return max(self.least, self.busy(layer, batch))


TITAN_RTX = Chip()


@dataclass(frozen=True, slots=True)
class ImageNetwork:
    """Layers in their order, and the side of its square images of three channels."""

    name: str
    blocks: Callable[[], list[Block]]
    side: int = 224

    def layers(self) -> Iterator[Product]:
        """Yield every layer."""
        for block in self.blocks():
            yield from block

    def served(self, chip: Chip) -> ServedModel:
        """Return the network as a scheduler knows it: one stage, since no policy here comes between."""
        image, scores = (
            TensorSpec("image", "float32", (3, self.side, self.side)),
            TensorSpec("scores", "float32", (CLASSES,)),
        )
        spec = ModelSpec(self.name, "1", (image,), (scores,), 1, LARGEST)
        return ServedModel(spec, ModelCosts((self._curve(chip.seconds),)), max_queued=1 << 30)

    def footprint(self, chip: Chip) -> "Footprint":
        """Return what the network needs of a card."""
        busy = ModelCosts((self._curve(chip.busy),))
        return Footprint(busy, FLOAT * 3 * self.side**2, FLOAT * CLASSES)

    def _curve(self, of: Callable[[Product, int], float]) -> Curve:
        layers = list(self.layers())
        batches = tuple(range(1, LARGEST + 1))
        return Curve(batches, tuple(sum(of(layer, batch) for layer in layers) for batch in batches))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model needs of a card: seconds of the whole card, by stage and batch, and bytes of a request each way."""

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
