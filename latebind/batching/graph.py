"""Graph batching: whole batches, closed when full or when a window has passed (LazyBatching, sections II-C and VI).

`Stacked` is the base of most policies.
"""

from math import inf

from latebind.batching.decisions import Decision, GoOn, Wait
from latebind.batching.policy import ModelView, WorkView, launch
from latebind.batching.queue import Order
from latebind.batching.table import BatchTable, Stack
from latebind.domain.config import PolicyConfig


class Stacked:
    """Keeps sub-batches in a stack. Batches are no larger than the configuration and the model allow."""

    order = Order.ARRIVAL
    counts_exits = False

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def batch_limit(self, model: ModelView) -> int:
        """Return the configured maximum, at most what the model was built for."""
        return self.most(model)

    def most(self, model: ModelView) -> int:
        """Return the configured maximum, even where a policy lowers its `batch_limit`."""
        most = model.spec.max_batch
        return min(self._config.max_batch or most, most)

    def room(self, view: WorkView, model: ModelView) -> int:
        """Return how many more requests of `model` the worker may start, since they join the ones it has started."""
        return min(self.batch_limit(model), view.granularity) - view.started(model)

    def table(self) -> BatchTable:
        """Return an empty stack."""
        return Stack()

    def in_turn(self, view: WorkView) -> list[ModelView]:
        """Return the models with waiting requests in the order in which they are served."""
        return sorted(view.models.waiting, key=lambda model: model.queue.turn(self.order))


class GraphBatching(Stacked):
    """Launches a batch once `max_batch` requests of a model wait or its oldest has waited `window` seconds.

    Window 0 takes whatever waits when a worker is free, which is the strong baseline.
    """

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch the batch that is due and has the oldest request, or wait until one is due."""
        if view.entries:
            return GoOn()
        ripe, wake = None, inf
        for model in view.models.waiting:
            arrived = model.queue.oldest.arrived
            due = arrived if len(model.queue) >= self.room(view, model) else arrived + self._config.window
            if due > now:
                wake = min(wake, due)
            elif ripe is None or model.queue.turn(self.order) < ripe.queue.turn(self.order):
                ripe = model
        if ripe is None:
            return Wait(wake)
        return launch(ripe, ripe.queue.first(self.room(view, ripe)))
