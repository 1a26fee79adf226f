"""Activations kept between two stages: those of the batch that ran last, and those of preempted requests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, stack

from latebind.domain.actions import Run


class Batch(NamedTuple):
    """Inputs of a stage, each tensor `(B, ...)`.

    Rows belong to `requests`, some of which may already have an answer.
    """

    requests: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    def places(self, wanted: tuple[int, ...]) -> Sequence[int]:
        """Return the row numbers of the requests `wanted`, in their order."""
        if wanted == self.requests:
            return range(len(wanted))
        places = {request: place for place, request in enumerate(self.requests)}
        return [places[request] for request in wanted]


class Activations:
    """The activations of one worker.

    Rows of preempted requests are kept by slot until they go on or the slot is reused.

    If not `compact`, a batch keeps all rows that it began with until it is preempted. If requests do not `leave` with
    their answer, they go on with their batch.
    """

    def __init__(self, *, compact: bool = True, leave: bool = True) -> None:
        self._compact = compact
        self._leave = leave
        self._batch: Batch | None = None  # output of the last stage, in memory that the stage will reuse
        self._last: Run | None = None
        self._left: set[int] = set()  # requests of that batch that have an answer
        self._rows: dict[tuple[str, int], Tensor] = {}  # of preempted requests, by model and slot

    def keep(self, action: Run, batch: Batch) -> None:
        """Keep the output of a stage; the requests of `action` are those that will go on with it."""
        self._last, self._batch, self._left = action, batch, set()

    def mark_exited(self, requests: Iterable[int]) -> None:
        """Mark requests of the last batch as answered: their rows need not be kept."""
        self._left.update(requests)

    def drop(self) -> None:
        """Drop the output of the last stage: no request goes on with it."""
        self._last, self._batch = None, None

    def begin(self, action: Run) -> None:
        """Forget who had the slots of `action` before: its requests begin."""
        self.put_aside()
        for slot in action.slots if self._rows else ():
            self._rows.pop((action.model, slot), None)

    def put_aside(self) -> None:
        """Copy the rows of the last stage's output that go on, because another batch is to run."""
        if self._last is not None:
            left = self._left if self._leave else ()
            self._copy(tuple([request for request in self._last.requests if request not in left]))
        self.drop()

    def take(self, action: Run) -> Batch:
        """Return the activations of the requests of `action`; if not compact, rows of others may be among them."""
        batch = self._batch
        if batch is None or not set(action.requests) <= set(batch.requests):
            self.put_aside()
            rows = [self._rows.pop((action.model, slot)) for slot in action.slots]
            return Batch(action.requests, (stack(rows),))
        if self._compact:
            taken = self._left.union(action.requests)
            last = self._last.requests if self._last is not None else ()
            self._copy(tuple([request for request in last if request not in taken]))
        self.drop()
        if self._compact and action.requests != batch.requests:
            return Batch(action.requests, (_rows_of(batch, action.requests),))
        return batch

    def _copy(self, requests: tuple[int, ...]) -> None:
        """Copy the rows of these requests, so that they can go on without the batch that they are in."""
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
