"""What most batching policies have in common."""

from latebind.batching.table import BatchTable
from latebind.batching.view import ModelView, WorkView
from latebind.domain.config import PolicyConfig


class Stacked:
    """Work in a stack, batches no larger than configured."""

    counts_exits = False
    widens = False

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config

    def batch_limit(self, model: ModelView) -> int:
        """Return the configured maximum, at most what the model was built for."""
        return self.most(model)

    def most(self, model: ModelView) -> int:
        """Return that maximum, whatever a policy makes of it."""
        most = model.spec.max_batch
        return min(self._config.max_batch or most, most)

    def room(self, view: WorkView, model: ModelView) -> int:
        """Return how many more requests of `model` the worker may begin: they will be one batch with those it has."""
        return min(self.batch_limit(model), view.granularity) - view.begun(model)

    def table(self, granularity: int) -> BatchTable:
        """Return an empty stack."""
        return BatchTable(min(granularity, self._config.max_batch or granularity))


def by_age(view: WorkView) -> list[ModelView]:
    """Return the models that somebody waits for, the one whose oldest request came first in front."""
    return sorted(view.models.waiting, key=lambda model: model.queue.oldest.arrived)
