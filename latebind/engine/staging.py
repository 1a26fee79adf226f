"""How inputs get from slots to stages and outputs back: on the CPU here, on CUDA devices in `device_pool`.

On the CPU nothing is staged: stages read the slots themselves.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.events import Arrived
from latebind.engine.slots import SlotMemory

AT_ONCE = nullcontext()
MOST_VIEWS = 1024  # views kept of a model's slots


class Stream(Protocol):
    """One worker's stream of execution. For one thread at a time."""

    def running(self) -> AbstractContextManager[object]:
        """Compute on this stream within the context; when it is left, everything has been computed."""

    def wait(self) -> None:
        """Return when everything launched on this stream has been computed."""

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return the inputs of the requests of `action`, each `(B, *shape)`; they stay valid while these run."""

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Copy row `places[i]` of each of the `results` `(B, *shape)` into slot `slots[i]`; it is there on return."""


class Staging(Protocol):
    """What all workers of an engine share. It is told of requests only if it `tracks_requests`."""

    @property
    def tracks_requests(self) -> bool:
        """Whether it needs to be told when requests arrive and end."""

    def arrived(self, event: Arrived) -> None:
        """Handle the arrival of a model's requests, whose inputs are in their slots. From any thread.

        It is called before the scheduler is told of them.
        """

    def ended(self, request: int) -> None:
        """Handle the end of a request, if it is one, before its slot is reused. From any thread."""

    def stream(self) -> Stream:
        """Return a stream of execution for another worker."""

    def close(self) -> None:
        """Release all resources; nothing runs any more."""


class HostStaging:
    """Staging on the CPU: nothing is staged. A batch is a view of contiguous slots, else a copy of their rows.

    It is its own stream: calls return when everything is computed, so all streams are alike.
    """

    tracks_requests = False

    def __init__(self, models: Sequence[str], memory: SlotMemory) -> None:
        self._inputs = {name: Views(memory.by_name[name].inputs) for name in models}
        self._outputs = {name: Views(memory.by_name[name].outputs) for name in models}

    def arrived(self, event: Arrived) -> None:
        """Do nothing."""

    def ended(self, request: int) -> None:
        """Do nothing."""

    def stream(self) -> "HostStaging":
        """Return itself."""
        return self

    def close(self) -> None:
        """Do nothing."""

    def running(self) -> AbstractContextManager[object]:
        """Return an empty context."""
        return AT_ONCE

    def wait(self) -> None:
        """Do nothing."""

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return views if the slots are contiguous, else copies."""
        inputs, slots = self._inputs[action.model], action.slots
        return inputs.of(slots) or tuple([rows[list(slots)] for rows in inputs.whole])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Copy all rows at once if slots and rows are contiguous, else row by row."""
        outputs = self._outputs[model]
        together = outputs.of(slots) if slots and are_contiguous(places) else None
        if together is not None:
            first, count = places[0], len(places)
            for rows, result in zip(together, results, strict=True):
                rows.copy_(result if result.shape[0] == count else result[first : first + count])
            return
        for rows, result in zip(outputs.whole, results, strict=True):
            for slot, place in zip(slots, places, strict=True):
                rows[slot] = result[place]


class Views:
    """A model's slots as tensors, and a cache of views of contiguous slots.

    Making a view takes as long as a small stage.
    """

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self.whole = tensors_of(arrays)
        self._made: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def of(self, slots: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return these slots of each tensor if they are contiguous, else None.

        From any thread: two may make the same view.
        """
        slots = tuple(slots)
        found = self._made.get(slots)
        if found is None and are_contiguous(slots):
            if len(self._made) >= MOST_VIEWS:
                self._made.clear()
            first, behind = slots[0], slots[-1] + 1
            found = self._made[slots] = tuple([rows[first:behind] for rows in self.whole])
        return found


def tensors_of(arrays: Sequence[NDArray[np.generic]]) -> tuple[Tensor, ...]:
    """Return tensors that share the arrays' memory."""
    return tuple(torch.from_numpy(rows) for rows in arrays)


def are_contiguous(rows: Sequence[int]) -> bool:
    """Return whether each row directly follows the one before it."""
    if isinstance(rows, range):
        return rows.step == 1
    first, count = rows[0], len(rows)
    return count == 1 or (rows[-1] - first == count - 1 and tuple(rows) == tuple(range(first, first + count)))
