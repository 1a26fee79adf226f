"""What a batching policy sees and what it may answer. Read-only: the scheduler alone changes anything."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Protocol

from latebind.domain.costs import ModelCosts


class Waiting(Protocol):
    """A request in a queue. Times in seconds of the scheduler's clock."""

    @property
    def id(self) -> int:
        """The request's number."""

    @property
    def arrived(self) -> float:
        """When it came."""

    @property
    def deadline(self) -> float:
        """When its answer is due."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model: who waits for it, oldest first, the largest batch it may run and what its stages cost."""

    name: str
    max_batch: int
    costs: ModelCosts
    queue: Mapping[int, Waiting]

    @property
    def oldest(self) -> Waiting:
        """The request that has waited longest; the queue must not be empty."""
        return next(iter(self.queue.values()))

    def first(self, count: int) -> Iterator[int]:
        """Yield the numbers of the `count` requests that have waited longest."""
        return islice(self.queue, count)


@dataclass(frozen=True, slots=True)
class WorkView:
    """Everything that waits: one `ModelView` for each served model."""

    models: Sequence[ModelView]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start these waiting requests of `model` together on the free worker."""

    model: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Start nothing now; ask again at `until` (seconds) or when something has happened."""

    until: float = inf


Decision = Launch | Wait


class BatchPolicy(Protocol):
    """Decides who runs together. A policy is a pure function of the view and the time."""

    def batch_limit(self, model: ModelView) -> int:
        """Return the largest batch that this policy ever forms for `model`."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Say what a worker that is free at `now` should start; at least one request waits."""
