"""Activations between two stages: of the batch that ran last, and of those that others were let past."""

from torch import Tensor, stack

from latebind.domain.actions import Run


class Activations:
    """What one worker keeps. Rows belong to slots: what nobody asks for again goes when its slot is used again."""

    def __init__(self) -> None:
        self._requests: tuple[int, ...] = ()  # that the last stage ran for
        self._batch: Tensor | None = None  # its output, in memory that the stage will write to again
        self._last: Run | None = None
        self._left: tuple[int, ...] = ()  # of those requests, who goes no further
        self._rows: dict[tuple[str, int], Tensor] = {}  # of preempted batches, by model and slot

    def keep(self, action: Run, batch: Tensor) -> None:
        """Keep `(B, ...)`, what a stage has put out for the requests of `action`."""
        self._last, self._requests, self._batch, self._left = action, action.requests, batch, ()

    def let_go(self, requests: tuple[int, ...]) -> None:
        """Hear who of those that the last stage ran for goes no further."""
        self._left = requests

    def forget(self) -> None:
        """Drop what the last stage has put out: nobody goes on with it."""
        self._last, self._requests, self._batch = None, (), None

    def put_aside(self) -> None:
        """Copy what the last stage has put out, because another batch is to run."""
        if self._last is None or self._batch is None:
            return
        for slot, row in zip(self._last.slots, self._batch.clone(), strict=True):
            self._rows[self._last.model, slot] = row
        self.forget()

    def take(self, action: Run) -> Tensor:
        """Return the activations of the requests of `action`, and keep those of others that have not left."""
        if action.requests == self._requests and self._batch is not None:
            batch = self._batch
            self.forget()
            return batch
        if self._batch is not None and set(action.requests) <= set(self._requests):
            places = {request: place for place, request in enumerate(self._requests)}
            batch = self._batch[[places[request] for request in action.requests]]
            self._rest(places.keys() - set(action.requests) - set(self._left))
            self.forget()
            return batch
        self.put_aside()
        return stack([self._rows.pop((action.model, slot)) for slot in action.slots])

    def _rest(self, requests: set[int]) -> None:
        """Copy the rows of those who go on later than others of their batch."""
        assert self._last is not None
        assert self._batch is not None
        for request, slot, row in zip(self._requests, self._last.slots, self._batch, strict=True):
            if request in requests:
                self._rows[self._last.model, slot] = row.clone()
