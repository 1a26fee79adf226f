"""What a batching policy sees. Read-only: the scheduler alone changes anything."""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

from latebind.batching.decisions import Decision, Launch
from latebind.batching.estimate import Estimate
from latebind.batching.queue import Queue
from latebind.batching.request import Request
from latebind.batching.table import BatchTable, SubBatch
from latebind.domain.model import ModelSpec


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model: who waits for it, oldest first, and how long its work takes."""

    spec: ModelSpec
    estimate: Estimate
    queue: Queue

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name


class Models(Sequence[ModelView]):
    """All models, in their order, and who may begin over all of them; lanes tell it, policies only read.

    `waiting` are the models that somebody waits for who may begin, in the same order: decisions cost in proportion to
    these. Their `requests` are `seconds` of work for one worker, behind learned caches as much as runs on average.
    """

    def __init__(self, models: Iterable[ModelView] = ()) -> None:
        self._models: list[ModelView] = []
        self._places: dict[str, int] = {}
        self._by_name: dict[str, ModelView] = {}
        self._waiting_places: list[int] = []
        self.waiting: list[ModelView] = []
        self.requests = 0
        self.seconds = 0.0
        self.decode = False  # whether any writes sequences
        self.exit = False  # whether any has requests that leave early
        for model in models:
            self.append(model)

    def __len__(self) -> int:
        return len(self._models)

    @overload
    def __getitem__(self, place: int) -> ModelView: ...

    @overload
    def __getitem__(self, place: slice) -> list[ModelView]: ...

    def __getitem__(self, place: int | slice) -> ModelView | list[ModelView]:
        return self._models[place]

    def __iter__(self) -> Iterator[ModelView]:
        return iter(self._models)

    def named(self, name: str) -> ModelView:
        """Return the model of this name."""
        return self._by_name[name]

    def append(self, model: ModelView) -> None:
        """Take in one more model, whose queue is empty."""
        self._places[model.name] = len(self._models)
        self._by_name[model.name] = model
        self._models.append(model)
        self.decode = self.decode or model.estimate.decoder is not None
        self.exit = self.exit or model.estimate.exits.some

    def came(self, model: ModelView, count: int, seconds: float) -> None:
        """Count so many who have come to the queue of a model, with the seconds of work that each is."""
        if count and len(model.queue) == count:
            place = self._places[model.name]
            at = bisect_left(self._waiting_places, place)
            self._waiting_places.insert(at, place)
            self.waiting.insert(at, model)
        self.requests += count
        self.seconds += count * seconds

    def went(self, model: ModelView, count: int, seconds: float) -> None:
        """Count so many who have left the queue of a model."""
        if count and not model.queue:
            at = bisect_left(self._waiting_places, self._places[model.name])
            del self._waiting_places[at], self.waiting[at]
        self.requests -= count
        self.seconds = self.seconds - count * seconds if self.requests else 0.0

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        assert self.waiting == [model for model in self._models if model.queue], (
            "models that somebody waits for are off"
        )
        assert self.requests == sum([len(model.queue) for model in self.waiting]), "the count of who may begin is off"


ANY_SIZE = sys.maxsize  # the granularity of a worker that takes all that policy and model allow


@dataclass(frozen=True, slots=True)
class WorkView:
    """What one worker may do next: those who wait, by model, and the sub-batches that it has begun, the newest last.

    Its batches are no larger than its `granularity` (Ebird, section VI). `crew` are the views of all workers. What lies
    `aside` cannot go on, for its next stage is not in memory.
    """

    models: Models
    entries: Sequence[SubBatch] = ()
    granularity: int = ANY_SIZE
    crew: Sequence["WorkView"] = ()
    aside: list[SubBatch] = field(default_factory=list)

    @property
    def alive(self) -> int:
        """The requests that all workers have begun: Ebird's CurInf (table II)."""
        return sum([len(entry.members) for view in self.crew for entry in (*view.entries, *view.aside)])

    @property
    def resting(self) -> int:
        """The requests that the worker has begun."""
        count = 0
        for entry in self.entries:
            count += len(entry.members)
        return count

    def begun(self, model: ModelView) -> int:
        """Return how many requests of a model the worker has begun: they will be one batch, within its limit."""
        return sum([len(entry.members) for entry in self.entries if entry.spec is model.spec])

    def model_of(self, batch: SubBatch) -> ModelView:
        """Return the model of a sub-batch."""
        return self.models.named(batch.spec.name)


def launch(model: ModelView, requests: Iterable[Request]) -> Launch:
    """Return the decision to begin these requests."""
    return Launch(model.name, tuple([request.id for request in requests]))


class BatchPolicy(Protocol):
    """Decides who runs together. A policy is a pure function of the view and the time.

    Where it `counts_exits`, learned caches count in what a request is taken to need when it comes. Where it `widens`,
    one request may have the cores of all workers while nobody else wants them.
    """

    counts_exits: bool
    widens: bool

    def batch_limit(self, model: ModelView) -> int:
        """Return the largest batch that this policy ever forms for `model`."""

    def table(self, granularity: int) -> BatchTable:
        """Return an empty table for one worker, whose batches are no larger than that."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Say what a worker does that is free at `now`, or at a stage boundary.

        At least one request waits, or the table is open to a choice.
        """
