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
