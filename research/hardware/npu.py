"""A cost model of the accelerator in LazyBatching's table I: a systolic array that holds weights while rows pass by.

The paper leaves some things open, so these are assumed: weights have eight bits and are read from memory again for
every layer; filling the array with one tile of weights takes `fill` cycles; activations stay in on-chip memory;
everything that is not a matrix product runs on a vector unit.

With `double_buffered`, the weights of the next tile are read while rows pass, so a layer takes the longer of reading
and computing. Without it, each tile is filled, used and drained in turn, and the time to read the weights is added. In
that case, with a fill of one row a cycle (128), the model counts the same cycles as SCALE-Sim (Samajdar et al. 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Product:
    """A layer as a product of a `rows` x `depth` matrix with a `depth` x `width` one, for each item of a batch.

    In recurrent stages it is for each step of an item. All items of a batch share the weights. Operations without
    weights, such as attention, are counted as `vector` multiplications for each item, and batching saves nothing there.
    """

    depth: int = 0
    width: int = 0
    rows: int = 1
    vector: int = 0


@dataclass(frozen=True, slots=True)
class SystolicArray:
    """The accelerator of table I: 128 x 128 cells at 700 MHz, memory with 360 GB/s and a latency of 100 cycles."""

    side: int = 128
    hertz: float = 700e6
    bytes_per_second: float = 360e9
    latency: int = 100
    lanes: int = 128
    fill: int = 32
    double_buffered: bool = True

    def seconds(self, product: Product, batch: int) -> float:
        """Return the seconds that a layer takes for a batch of this size."""
        cycles = product.vector * batch / self.lanes
        if product.depth:
            rows = product.rows * batch
            tiles = ceil(product.depth / self.side) * ceil(product.width / self.side)
            memory = product.depth * product.width / self.bytes_per_second * self.hertz
            drain = 2 * self.side - 2
            if self.double_buffered:
                cycles += max(tiles * max(rows, self.fill), memory) + self.fill + drain + self.latency
            else:
                cycles += tiles * (rows + self.fill + drain) + memory + self.latency
        return cycles / self.hertz

    def in_turn(self, products: Sequence[Product], batch: int) -> float:
        """Return the seconds that several layers take one after another."""
        return sum(self.seconds(product, batch) for product in products)


# Layer shapes of image networks, in blocks between which a scheduler may switch to another batch. The multiply-adds of
# one image equal those published in the papers and by model zoos (checked by tests).

Block = tuple[Product, ...]


def convolution(inside: int, outside: int, side: int, kernel: int = 3, across: int = 0) -> Product:
    """Return a convolution with `side` x `side` outputs and a `kernel` x `across` kernel (square if `across` is 0)."""
    return Product(inside * kernel * (across or kernel), outside, side * side)


def dense(inside: int, outside: int, rows: int = 1) -> Product:
    """Return a fully connected layer that is applied to `rows` vectors of each item."""
    return Product(inside, outside, rows)


def residual(depths: Sequence[int]) -> list[Block]:
    """Return a residual network of bottleneck blocks for 224 x 224 images (He et al. 2016, table 1).

    `depths` is the number of blocks for each feature map size: 3, 4, 6, 3 is ResNet-50.
    """
    blocks: list[Block] = [(convolution(3, 64, 112, 7),)]
    inside = 64
    for width, count, side in zip((64, 128, 256, 512), depths, (56, 28, 14, 7), strict=True):
        for block in range(count):
            layers = [convolution(inside, width, side, 1), convolution(width, width, side)]
            layers.append(convolution(width, 4 * width, side, 1))
            if block == 0:
                layers.append(convolution(inside, 4 * width, side, 1))
            blocks.append(tuple(layers))
            inside = 4 * width
    return [*blocks, (dense(2048, 1000),)]


def plain(depths: Sequence[int]) -> list[Block]:
    """Return a VGG network for 224 x 224 images (Simonyan and Zisserman 2015), one block for each feature map size.

    `depths` is the number of convolutions in each block: 2, 2, 3, 3, 3 is VGG-16.
    """
    blocks, inside = [], 3
    for width, count, side in zip((64, 128, 256, 512, 512), depths, (224, 112, 56, 28, 14), strict=True):
        layers = []
        for _ in range(count):
            layers.append(convolution(inside, width, side))
            inside = width
        blocks.append(tuple(layers))
    return [*blocks, (dense(25_088, 4096), dense(4096, 4096), dense(4096, 1000))]


def inception_v4() -> list[Block]:
    """Return Inception-v4 for 299 x 299 images (Szegedy et al. 2017, figures 3 to 9)."""
    c = convolution
    stem = (
        *(c(3, 32, 149), c(32, 32, 147), c(32, 64, 147), c(64, 96, 73)),
        *(c(160, 64, 73, 1), c(64, 96, 71)),
        *(c(160, 64, 73, 1), c(64, 64, 73, 7, 1), c(64, 64, 73, 1, 7), c(64, 96, 71), c(192, 192, 35)),
    )
    a = (
        *(c(384, 96, 35, 1), c(384, 96, 35, 1), c(384, 64, 35, 1), c(64, 96, 35)),
        *(c(384, 64, 35, 1), c(64, 96, 35), c(96, 96, 35)),
    )
    to_b = (c(384, 384, 17), c(384, 192, 35, 1), c(192, 224, 35), c(224, 256, 17))
    b = (
        *(c(1024, 128, 17, 1), c(1024, 384, 17, 1)),
        *(c(1024, 192, 17, 1), c(192, 224, 17, 1, 7), c(224, 256, 17, 7, 1)),
        *(c(1024, 192, 17, 1), c(192, 192, 17, 1, 7), c(192, 224, 17, 7, 1)),
        *(c(224, 224, 17, 1, 7), c(224, 256, 17, 7, 1)),
    )
    to_c = (
        *(c(1024, 192, 17, 1), c(192, 192, 8)),
        *(c(1024, 256, 17, 1), c(256, 256, 17, 1, 7), c(256, 320, 17, 7, 1), c(320, 320, 8)),
    )
    last = (
        *(c(1536, 256, 8, 1), c(1536, 256, 8, 1)),
        *(c(1536, 384, 8, 1), c(384, 256, 8, 1, 3), c(384, 256, 8, 3, 1)),
        *(c(1536, 384, 8, 1), c(384, 448, 8, 1, 3), c(448, 512, 8, 3, 1), c(512, 256, 8, 1, 3), c(512, 256, 8, 3, 1)),
    )
    return [stem, *(a,) * 4, to_b, *(b,) * 7, to_c, *(last,) * 3, (dense(1536, 1000),)]
