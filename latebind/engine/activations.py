"""Activations between two stages: of the batch that ran last, and of those that others were let past."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, stack

from latebind.domain.actions import Run


class Batch(NamedTuple):
    """What a stage takes, each tensor `(B, ...)`. The rows are those of `requests`, of whom some may have left."""

    requests: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    def places(self, wanted: tuple[int, ...]) -> Sequence[int]:
        """Return which rows are those of the requests `wanted`, in their order."""
        if wanted == self.requests:
            return range(len(wanted))
        places = {request: place for place, request in enumerate(self.requests)}
        return [places[request] for request in wanted]


class Activations:
    """What one worker keeps. Rows belong to slots: what nobody asks for again goes when its slot is used again.

    Where not `compact`, a batch goes on with all rows that it began with, until others are let past it.
    """

    def __init__(self, *, compact: bool = True) -> None:
        self._compact = compact
        self._batch: Batch | None = None  # output of the last stage, in memory that the stage will write to again
        self._last: Run | None = None
        self._left: set[int] = set()  # of those, who has an answer
        self._rows: dict[tuple[str, int], Tensor] = {}  # of preempted batches, by model and slot

    def keep(self, action: Run, batch: Batch) -> None:
        """Keep what a stage has put out; those of `action` are whom it is wanted for."""
        self._last, self._batch, self._left = action, batch, set()

    def leave(self, requests: Iterable[int]) -> None:
        """Hear who of the last batch has an answer: nobody need keep their rows for them."""
        self._left.update(requests)

    def forget(self) -> None:
        """Drop what the last stage has put out: nobody goes on with it."""
        self._last, self._batch = None, None

    def put_aside(self) -> None:
        """Copy what the last stage has put out, because another batch is to run."""
        if self._last is not None:
            self._copy(self._last.requests)
        self.forget()

    def take(self, action: Run) -> Batch:
        """Return the activations of the requests of `action`; of those that have left there may be some beside them."""
        batch = self._batch
        if batch is None or not set(action.requests) <= set(batch.requests):
            self.put_aside()
            rows = [self._rows.pop((action.model, slot)) for slot in action.slots]
            return Batch(action.requests, (stack(rows),))
        if self._compact:
            taken = self._left.union(action.requests)
            last = self._last.requests if self._last is not None else ()
            self._copy(tuple([request for request in last if request not in taken]))
        self.forget()
        if self._compact and action.requests != batch.requests:
            return Batch(action.requests, (_rows_of(batch, action.requests),))
        return batch

    def _copy(self, requests: tuple[int, ...]) -> None:
        """Keep the rows of these requests beside the batch that they lie in; they may go on without it."""
        if self._last is None or self._batch is None or not requests:
            return
        slots = dict(zip(self._last.requests, self._last.slots, strict=True))
        for request, row in zip(requests, _rows_of(self._batch, requests), strict=True):
            self._rows[self._last.model, slots[request]] = row


def _rows_of(batch: Batch, requests: tuple[int, ...]) -> Tensor:
    """Return a copy of the activations of these requests, in their order."""
    (activation,) = batch.tensors
    places = batch.places(requests)
    return activation.clone() if isinstance(places, range) else activation[places]
