"""How inputs get from their slots to where stages read them, and answers back. `device_pool` has the member for CUDA.

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
MOST_VIEWS = 1024  # that are kept of a model's slots


class Stream(Protocol):
    """One worker's stream of execution. For one thread at a time."""

    def running(self) -> AbstractContextManager[object]:
        """Have what is computed within run on this stream; at its end all of it has been computed."""

    def wait(self) -> None:
        """Return when all that was begun on this stream has been computed."""

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return the inputs of the requests of `action`, each `(B, *shape)`: they hold as long as these run."""

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Write what lies at each of these places of the `results` `(B, *shape)` into the slot that goes with it.

        When this returns it lies there.
        """


class Staging(Protocol):
    """What all workers of an engine share of it. Only where it `hears` is it told of requests."""

    @property
    def hears(self) -> bool:
        """Whether it has anything to do when requests come and end."""

    def arrived(self, event: Arrived) -> None:
        """Hear of a model's requests whose inputs lie in their slots, before anybody else does. From any thread."""

    def ended(self, request: int) -> None:
        """Hear that a request has ended, if it is one, before its slot may be used again. From any thread."""

    def stream(self) -> Stream:
        """Return a stream of execution for one worker more."""

    def close(self) -> None:
        """Give back what was taken; nothing runs any more."""


class HostStaging:
    """Of the CPU: a batch is a view of slots that follow each other, else a copy of their rows."""

    hears = False

    def __init__(self, models: Sequence[str], memory: SlotMemory) -> None:
        self._inputs = {name: Views(memory.by_name[name].inputs) for name in models}
        self._outputs = {name: Views(memory.by_name[name].outputs) for name in models}

    def arrived(self, event: Arrived) -> None:
        """Inputs are where they are read."""

    def ended(self, request: int) -> None:
        """Nothing was kept."""

    def stream(self) -> "HostStaging":
        """A thread runs what it calls itself, so one stream is as good as another."""
        return self

    def close(self) -> None:
        """Nothing was taken."""

    def running(self) -> AbstractContextManager[object]:
        """Calls return when all is computed."""
        return AT_ONCE

    def wait(self) -> None:
        """Calls return when all is computed."""

    def inputs(self, action: Run) -> tuple[Tensor, ...]:
        """Return views where the slots follow each other, else copies."""
        inputs, slots = self._inputs[action.model], action.slots
        return inputs.of(slots) or tuple([rows[list(slots)] for rows in inputs.whole])

    def answer(self, model: str, slots: Sequence[int], results: Sequence[Tensor], places: Sequence[int]) -> None:
        """Copy all at once where slots and rows follow each other, else row by row."""
        outputs = self._outputs[model]
        together = outputs.of(slots) if slots and follow_each_other(places) else None
        if together is not None:
            first, count = places[0], len(places)
            for rows, result in zip(together, results, strict=True):
                rows.copy_(result if result.shape[0] == count else result[first : first + count])
            return
        for rows, result in zip(outputs.whole, results, strict=True):
            for slot, place in zip(slots, places, strict=True):
                rows[slot] = result[place]


class Views:
    """Tensors that are the slots of a model; of slots that follow each other, a view is made once and kept.

    Making one takes as long as a small stage.
    """

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self.whole = tensors_of(arrays)
        self._made: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def of(self, slots: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return these slots of each tensor where they follow each other. From any thread: two may make the same."""
        slots = tuple(slots)
        found = self._made.get(slots)
        if found is None and follow_each_other(slots):
            if len(self._made) >= MOST_VIEWS:
                self._made.clear()
            first, behind = slots[0], slots[-1] + 1
            found = self._made[slots] = tuple([rows[first:behind] for rows in self.whole])
        return found


def tensors_of(arrays: Sequence[NDArray[np.generic]]) -> tuple[Tensor, ...]:
    """Return tensors that are the same memory."""
    return tuple(torch.from_numpy(rows) for rows in arrays)


def follow_each_other(rows: Sequence[int]) -> bool:
    """Tell whether each row lies behind the one before it."""
    if isinstance(rows, range):
        return rows.step == 1
    first, count = rows[0], len(rows)
    return count == 1 or (rows[-1] - first == count - 1 and tuple(rows) == tuple(range(first, first + count)))
