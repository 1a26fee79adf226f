"""What learned caches read of an activation: all of it, or, if rows differ in size, a vector of fixed width.

It has the mean and the largest number over the dimensions that vary. Padding after a row does not count, nor what a
client has padded and masked; so a row is read alike alone and beside longer ones, bit for bit if its activation is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from latebind.program.arrays import tensors_over
from latebind.program.cut import carried_in
from latebind.program.graph import Graph

if TYPE_CHECKING:
    from latebind.program.program import Program

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read after one stage, in the `shape` of a row.

    Without `axes` that is the activation. Otherwise a batch is pooled over these axes; of the last one only the first
    `width` numbers are a row's own, and a place counts if none of its `marks` is 0.
    """

    shape: Shape
    axes: tuple[int, ...] = ()
    width: int | None = None
    marks: slice | tuple[int, ...] = ()

    def __call__(self, activation: Any, shapes: Sequence[Shape] = ()) -> Any:
        """Return what is read of an activation `(B, ...)`, array or tensor: itself, or `(B, width) float32`.

        `shapes` are the rows' own shapes, if some are padded.
        """
        if not self.axes:
            return activation
        # In numpy, and row by row if some are padded: torch takes twice as long for one row, ten times with a mask, and
        # the stage that has just run has evicted the code of either from the core's caches.
        is_array = isinstance(activation, np.ndarray)
        rows: NDArray[np.float32] = activation if is_array else activation.cpu().numpy()
        found = np.empty((len(rows), 2, self.shape[0] // 2), np.float32)
        if not shapes and self._all_count(rows):
            self._pool(rows, found)
        else:
            for place in range(len(rows)):
                row = rows[place : place + 1]
                own = row[(slice(None), *map(slice, shapes[place]))] if shapes else row
                read = found[place : place + 1]
                if self._all_count(own):
                    self._pool(own, read)
                else:
                    self._pool_some(own, read)
        read = found.reshape(len(rows), -1)
        return read if is_array else tensors_over((read,))[0]

    def _all_count(self, rows: NDArray[np.float32]) -> bool:
        return self.marks == () or bool(rows[..., self.marks].all())

    def _pool(self, rows: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        own = rows if self.width is None else rows[..., : self.width]
        count = prod([own.shape[axis] for axis in self.axes])
        np.divide(np.add.reduce(own, axis=self.axes).reshape(len(own), -1), count, out=found[:, 0])
        found[:, 1] = np.maximum.reduce(own, axis=self.axes).reshape(len(own), -1)

    def _pool_some(self, row: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Pool a row `(1, ...)` of which some places do not count."""
        own = row[..., : self.width]
        counts = row[..., self.marks].all(axis=-1, keepdims=True)
        total = np.add.reduce(np.broadcast_to(counts, own.shape), axis=self.axes, dtype=np.int64).reshape(1, -1)
        sums = np.add.reduce(own, axis=self.axes, where=counts).reshape(1, -1)
        largest = np.maximum.reduce(own, axis=self.axes, where=counts, initial=-np.inf).reshape(1, -1)
        np.divide(sums, np.maximum(total, 1), out=found[:, 0])
        found[:, 1] = np.where(total > 0, largest, 0.0)  # a row of padding alone has neither


def readings(program: "Program") -> tuple[Reading, ...]:
    """Return what is read after each stage of a program but the last."""
    return tuple(reading(graph, pads=program.spec.pads) for graph in program.graphs[1:])


def reading(graph: Graph, *, pads: bool) -> Reading:
    """Return what is read of the activation that the stage of this graph takes.

    An image is pooled as a whole, even if it varies in only one direction. `pads`: see `ModelSpec`. With it, what is
    carried is 0 at places that do not count; without it, that is known only of what is true or false.
    """
    (taken,) = graph.inputs
    axes = tuple(axis for axis, size in enumerate(taken.sizes, start=1) if isinstance(size, str))
    if not axes or taken.dtype != "float32":  # whole numbers, such as words: nothing was computed yet
        return Reading(taken.shape)
    if len(taken.shape) == 3 and 1 not in axes:
        axes = (2, 3)
    carried = carried_in(graph) if len(taken.shape) not in axes else None
    sizes = [*taken.shape[:-1], carried.width if carried else taken.shape[-1]]
    half = prod([size for axis, size in enumerate(sizes, start=1) if axis not in axes])
    if carried is None:
        return Reading((2 * half,), axes)
    marks = carried.every if pads else carried.masks
    together = marks and marks == tuple(range(marks[0], marks[-1] + 1))  # a slice is no copy
    return Reading((2 * half,), axes, carried.width, slice(marks[0], marks[-1] + 1) if together else marks)
