"""How inputs get from slots to stages and outputs back. On the CPU nothing is staged: stages read the slots themselves.

For CUDA devices see `device`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias, Union

from latebind.domain.actions import Run
from latebind.domain.model import TensorSpec
from latebind.engine.slots import SlotMemory
from latebind.program.arrays import Array, Arrays

if TYPE_CHECKING:
    from latebind.engine.device import DeviceStaging, DeviceStream

AT_ONCE = nullcontext()


class HostStaging:
    """Staging on the CPU. A batch is a view of contiguous slots, else a copy of their rows.

    It is its own stream, one worker's stream of execution: a thread computes what it calls. `copies` is whether
    `copy_in` has to be called when the inputs of requests, and of steps of queries, are in their slots.
    """

    copies = False

    def __init__(self, models: Sequence[str], memory: SlotMemory) -> None:
        slots = {name: memory.by_name[name] for name in models}
        self._inputs = {name: own.inputs for name, own in slots.items()}
        self._outputs = {name: own.outputs for name, own in slots.items()}

    def copy_in(self, model: str, slots: Sequence[int]) -> None:
        """Do nothing: stages read the slots."""

    def stream(self) -> "HostStaging":
        """Return a stream of execution for another worker."""
        return self

    def close(self) -> None:
        """Release all resources; nothing runs any more."""

    def running(self) -> AbstractContextManager[object]:
        """Compute on this stream within the context; when it is left, everything has been computed."""
        return AT_ONCE

    def wait(self) -> None:
        """Return when everything launched on this stream has been computed."""

    def there(self, arrays: Arrays, specs: Sequence[TensorSpec]) -> Arrays:
        """Return these inputs `(B, ...)` where the stages read them."""
        del specs
        return arrays

    def back(self, results: Sequence[Array]) -> Sequence[Array]:
        """Return these results `(B, ...)` where the frontend can read them; they are there on return."""
        return results

    def inputs(self, action: Run) -> Arrays:
        """Return the inputs of the requests of `action`, each `(B, *shape)`; they stay valid while these run."""
        slots = index_of(action.slots)
        return tuple([rows[slots] for rows in self._inputs[action.model]])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Array], places: Sequence[int]) -> None:
        """Copy row `places[i]` of each of the `results` `(B, *shape)` into slot `slots[i]`; it is there on return."""
        if slots:
            to, of = index_of(slots), index_of(places)
            for rows, result in zip(self._outputs[model], results, strict=True):
                rows[to] = result[of]


Staging: TypeAlias = Union[HostStaging, "DeviceStaging"]
Stream: TypeAlias = Union[HostStaging, "DeviceStream"]


def are_contiguous(rows: Sequence[int]) -> bool:
    """Return whether each row directly follows the one before it."""
    if isinstance(rows, range):
        return rows.step == 1
    first, count = rows[0], len(rows)
    return count == 1 or (rows[-1] - first == count - 1 and tuple(rows) == tuple(range(first, first + count)))


def index_of(rows: Sequence[int]) -> slice | list[int]:
    """Return an index for these rows, at least one, of an array: a slice, which copies nothing, if possible."""
    return slice(rows[0], rows[-1] + 1) if are_contiguous(rows) else list(rows)
