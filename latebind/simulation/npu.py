"""The accelerator of LazyBatching's table I as a cost model: a systolic array with weights that stay while rows pass.

Assumptions, stated because the paper does not: eight-bit weights that come from memory anew for every layer, a tile
of them filled in `fill` cycles, activations in on-chip memory, what is not a matrix product on a vector unit. Where
weights of the next tile are fetched while rows pass (`double_buffered`), a layer takes the longer of both; elsewhere
each tile is filled, passed and drained in turn, and memory comes on top. In that case, with a fill of one row a cycle
(128), it counts the cycles of SCALE-Sim (Samajdar et al. 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Product:
    """A layer as a matrix product: `rows` x `depth` by `depth` x `width` for each item, or for each step of it.

    Items of a batch share the weights. A product without weights of its own, such as attention, is `vector`
    multiplications for each item, and nothing is shared.
    """

    depth: int = 0
    width: int = 0
    rows: int = 1
    vector: int = 0


@dataclass(frozen=True, slots=True)
class SystolicArray:
    """Table I: 128 x 128 at 700 MHz, 360 GB/s, 100 cycles of latency. `seconds` of one layer for a batch."""

    side: int = 128
    hertz: float = 700e6
    bytes_per_second: float = 360e9
    latency: int = 100
    lanes: int = 128
    fill: int = 32
    double_buffered: bool = True

    def seconds(self, product: Product, batch: int) -> float:
        """Return the seconds of a layer for so many items."""
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
        """Return the seconds of several layers."""
        return sum(self.seconds(product, batch) for product in products)
