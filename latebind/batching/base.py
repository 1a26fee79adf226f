"""The base class of most batching policies."""

from latebind.batching.queue import Order
from latebind.batching.table import BatchTable
from latebind.batching.view import ModelView, WorkView
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

    def table(self, granularity: int) -> BatchTable:
        """Return an empty stack."""
        return BatchTable(min(granularity, self._config.max_batch or granularity))

    def in_turn(self, view: WorkView) -> list[ModelView]:
        """Return the models with waiting requests in the order in which they are served."""
        return sorted(view.models.waiting, key=lambda model: model.queue.turn(self.order))
