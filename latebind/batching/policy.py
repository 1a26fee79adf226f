"""What a batching policy sees, and its contract. Here too: how policies are found. Pure.

Policies only read; the scheduler alone changes anything. A policy of your own is one class that fulfils `BatchPolicy`,
which is named by its dotted path.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from latebind.batching.costs import Estimate
from latebind.batching.decisions import Decision, Launch
from latebind.batching.queue import Backlog, Order, Queue, Request
from latebind.batching.table import BatchTable, SubBatch
from latebind.domain.config import PolicyConfig
from latebind.domain.model import ModelSpec
from latebind.domain.plugins import find

POLICIES = {
    "late": "latebind.batching.late:Late",
    "lazy+": "latebind.batching.lazy_plus:LazyPlus",
    "graph": "latebind.batching.graph:GraphBatching",
}


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model: its waiting requests that may start, and the estimate of how long its work takes."""

    spec: ModelSpec
    estimate: Estimate
    queue: Queue

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name


class Models:
    """All models, in their order, with totals over their queues. Lanes update it; policies only read.

    `waiting` are the models with requests that may start, in the same order; the cost of a decision is proportional to
    their number. `requests` counts these requests, and `backlog` has their work, with learned caches the average work,
    in the `order` in which they are served.
    """

    def __init__(self, models: Iterable[ModelView] = (), order: Order = Order.ARRIVAL) -> None:
        self.order = order
        self.backlog = Backlog()
        self.by_name: dict[str, ModelView] = {}
        self._places: dict[str, int] = {}
        self._waiting_places: list[int] = []
        self.waiting: list[ModelView] = []
        self.requests = 0
        self.decode = False  # whether any model has a decoder
        self.exit = False  # whether any model has requests that leave early
        for model in models:
            self.append(model)

    def named(self, name: str) -> ModelView:
        """Return the model of this name."""
        return self.by_name[name]

    def append(self, model: ModelView) -> None:
        """Add a model, whose queue must be empty."""
        self._places[model.name] = len(self.by_name)
        self.by_name[model.name] = model
        self.decode = self.decode or model.estimate.decoder is not None
        self.exit = self.exit or model.estimate.exits

    def enqueued(self, model: ModelView, count: int) -> None:
        """Note that `count` requests were added to the queue of a model."""
        if count and len(model.queue) == count:
            place = self._places[model.name]
            at = bisect_left(self._waiting_places, place)
            self._waiting_places.insert(at, place)
            self.waiting.insert(at, model)
        self.requests += count

    def dequeued(self, model: ModelView, count: int) -> None:
        """Note that `count` requests were removed from the queue of a model."""
        if count and not model.queue:
            at = bisect_left(self._waiting_places, self._places[model.name])
            del self._waiting_places[at], self.waiting[at]
        self.requests -= count

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        assert self.waiting == [model for model in self.by_name.values() if model.queue], (
            "the models with requests are off"
        )
        assert self.requests == sum([len(model.queue) for model in self.waiting]), "the count of requests is off"
        assert len(self.backlog) == self.requests, "the count of requests whose work is known is off"
        self.backlog.check()


ANY_SIZE = sys.maxsize  # the granularity of a worker whose batches only the policy and the model limit


@dataclass(frozen=True, slots=True)
class WorkView:
    """What one worker may run next: waiting requests, by model, and its started sub-batches, the newest last.

    Its batches are no larger than its `granularity` (Ebird, section VI). `crew` are the views of all workers. The
    sub-batches that are `aside` cannot go on, because their next stage is not in memory.
    """

    models: Models
    entries: Sequence[SubBatch] = ()
    granularity: int = ANY_SIZE
    crew: Sequence["WorkView"] = ()
    aside: list[SubBatch] = field(default_factory=list)

    @property
    def alive(self) -> int:
        """The number of requests that all workers have started: Ebird's CurInf (table II)."""
        return sum([len(entry.members) for view in self.crew for entry in (*view.entries, *view.aside)])

    @property
    def resting(self) -> int:
        """The number of requests that the worker has started, without those aside."""
        count = 0
        for entry in self.entries:
            count += len(entry.members)
        return count

    def started(self, model: ModelView) -> int:
        """Return how many requests of a model the worker has started, which will be one batch, within its limit."""
        return sum([len(entry.members) for entry in self.entries if entry.spec is model.spec])

    def model_of(self, batch: SubBatch) -> ModelView:
        """Return the model of a sub-batch."""
        return self.models.named(batch.spec.name)


def launch(model: ModelView, requests: Iterable[Request]) -> Launch:
    """Return the decision to start these requests."""
    return Launch(model.name, tuple([request.id for request in requests]))


class BatchPolicy(Protocol):
    """Decides which requests run together. A policy is a pure function of the view and the time.

    `order` says which model and which of its requests is served next; admission goes by it too.
    Where it `counts_exits`, the admission of requests counts on learned caches.
    """

    order: Order
    counts_exits: bool

    def batch_limit(self, model: ModelView) -> int:
        """Return the largest batch that this policy ever forms for `model`."""

    def table(self) -> BatchTable:
        """Return an empty batch table for one worker."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Return what a worker does next that is free, or at a stage boundary, at time `now`.

        At least one request waits, or the table has started something.
        """


def make_policy(config: PolicyConfig) -> BatchPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    policy: BatchPolicy = find("policy.name", config.name, POLICIES)(config)
    return policy
