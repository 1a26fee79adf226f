"""What a batching policy is, how policies are found, and graph batching.

Policies only read; the scheduler alone changes anything. A policy of your own is one class that fulfils `BatchPolicy`,
which is named by its dotted path; `Stacked` is the base of most. Pure.
"""

from math import inf
from typing import Protocol

from mypy_extensions import mypyc_attr

from latebind.batching.decisions import Decision, GoOn, Launch, Shed, Wait
from latebind.batching.requests import Lane, Order, Request
from latebind.batching.workers import BatchTable, Stack, SubBatch, Worker
from latebind.domain.config import PolicyConfig, find

__all__ = [  # what a policy of your own may need
    "POLICIES", "BatchPolicy", "BatchTable", "Decision", "GoOn", "GraphBatching", "Lane", "Launch", "Order", "Request",
    "Shed", "Stack", "Stacked", "SubBatch", "Wait", "Worker", "make_policy",
]  # fmt: skip

POLICIES = {
    "late": "latebind.batching.late:Late",
    "lazy+": "latebind.batching.late:LazyPlus",
    "graph": "latebind.batching.policy:GraphBatching",
}


class BatchPolicy(Protocol):
    """Decides which requests run together. A policy is a pure function of the view and the time.

    `order` says which model and which of its requests is served next; admission follows it too.
    If it `counts_exits`, the admission of requests counts on learned caches.
    """

    order: Order
    counts_exits: bool

    def batch_limit(self, model: Lane) -> int:
        """Return the largest batch that this policy ever forms for `model`."""

    def table(self) -> BatchTable:
        """Return an empty batch table for one worker."""

    def choose_level(self, model: Lane, now: float) -> None:
        """Choose at which level of its operating curve requests of `model` start at time `now`.

        It is called before `decide`, if the policy `counts_exits` and the model has such a curve.
        """

    def decide(self, view: Worker, now: float) -> Decision:
        """Return what a worker that is free, or at a stage boundary, does next at time `now`.

        At least one request waits, or the table has started something.
        """


def make_policy(config: PolicyConfig) -> BatchPolicy:
    """Make the policy that `config` names; an unknown name raises `ConfigError`."""
    policy: BatchPolicy = find("policy.name", config.name, POLICIES)(config)
    return policy


@mypyc_attr(allow_interpreted_subclasses=True)
class Stacked:
    """Keeps sub-batches in a stack. Batches are no larger than the configuration and the model allow."""

    order = Order.ARRIVAL
    counts_exits = False

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def batch_limit(self, model: Lane) -> int:
        """Return the configured maximum, at most what the model was built for."""
        return model.most

    def room(self, view: Worker, model: Lane) -> int:
        """Return how many more requests of `model` the worker may start, since they join the ones it has started."""
        return min(self.batch_limit(model), view.granularity) - view.started(model)

    def table(self) -> BatchTable:
        """Return an empty stack."""
        return Stack()

    def choose_level(self, model: Lane, now: float) -> None:
        """Choose the surest level at which all that wait are in time (`batching.depth`)."""
        model.choose_level(now)


@mypyc_attr(allow_interpreted_subclasses=True)
class GraphBatching(Stacked):
    """Graph batching: whole batches, closed when full or when a window has passed (LazyBatching, sections II-C and VI).

    Launches a batch once as many requests of a model wait as may run together, or its oldest has waited `window`
    seconds. Window 0 takes whatever waits when a worker is free, which is the strong baseline.
    """

    def decide(self, view: Worker, now: float) -> Decision:
        """Launch the batch that is due and has the oldest request, or wait until one is due."""
        if view.entries:
            return GoOn()
        chosen, wake = None, inf
        for model in view.models.waiting:
            arrived = model.queue.oldest.arrived
            due = arrived if len(model.queue) >= self.room(view, model) else arrived + self._config.window
            if due > now:
                wake = min(wake, due)
            elif chosen is None or model.queue.turn < chosen.queue.turn:
                chosen = model
        return Wait(wake) if chosen is None else chosen.launch(chosen.queue.first(self.room(view, chosen)))
