"""The outputs of stages that requests go on from: of the batch that ran last, and of those that were let past."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from weakref import ref

from torch import Tensor, stack

from latebind.domain.actions import Run
from latebind.engine.owners import Owners


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Batch:
    """Inputs of a stage, each tensor `(B, ...)`.

    Rows belong to `requests`, some of which may have ended.
    """

    requests: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    def places(self, wanted: tuple[int, ...]) -> Sequence[int]:
        """Return the row numbers of the requests `wanted`, in their order."""
        if wanted == self.requests:
            return range(len(wanted))
        places = {request: place for place, request in enumerate(self.requests)}
        return [places[request] for request in wanted]

    def row(self, request: int) -> Tensor:
        """Return the row of one request, of a single tensor."""
        (activation,) = self.tensors
        return activation[self.requests.index(request)]


class Activations:
    """The activations of one worker, for its thread alone. The `owners` of rows keep them, and they go with these.

    A stage that raised leaves its inputs here: its requests may run it again, apart.

    If not `compact`, a batch keeps all rows that it began with as long as its requests go on together.
    """

    def __init__(self, owners: Owners, *, compact: bool = True) -> None:
        self._owners = owners
        self._compact = compact
        self._last: ref[Batch] | None = None  # the output of the last stage, in memory that the stage will reuse

    def keep(self, batch: Batch) -> None:
        """Keep the output of a stage for those of its requests that have not ended."""
        self._owners.keep(batch.requests, batch)
        self._last = ref(batch)

    def put_aside(self, but: Collection[int] = ()) -> bool:
        """Copy the rows of the last output that others than `but` go on from, because another batch is to run.

        Each row is a copy by itself, to be freed by itself. Returns whether there were any.
        """
        last, found = None if self._last is None else self._last(), False
        for place, request in enumerate(() if last is None else last.requests):
            if last is not None and request not in but and self._owners.activation(request) is last:
                row = tuple([tensor[place : place + 1].clone() for tensor in last.tensors])
                self._owners.keep((request,), Batch((request,), row))
                found = True
        return found

    def take(self, action: Run) -> Batch:
        """Return what the requests of `action` go on from; if not compact, rows of others may be among them.

        Requests that a lookup aside has answered since the scheduler decided have ended: they are left out, and perhaps
        none is left. The batch stays kept until `keep` replaces it.
        """
        kept = {one: batch for one in action.requests if isinstance(batch := self._owners.activation(one), Batch)}
        requests, last = tuple(kept), None if self._last is None else self._last()
        if not kept:
            return Batch((), ())
        if last is None or any(batch is not last for batch in kept.values()):
            self.put_aside()
            batch = Batch(requests, (stack([kept[one].row(one) for one in requests]),))
        else:
            apart = self.put_aside(but=kept)
            if requests == last.requests or not (self._compact or apart):
                return last
            batch = Batch(requests, (_rows_of(last, requests),))
        self.keep(batch)
        return batch


def _rows_of(batch: Batch, requests: tuple[int, ...]) -> Tensor:
    """Return a copy of the activations of these requests, in their order."""
    (activation,) = batch.tensors
    return activation[batch.places(requests)]
