"""Serial execution: one request at a time, in the order of arrival (LazyBatching, section VI, baseline "Serial")."""

from latebind.batching.base import Stacked
from latebind.batching.decisions import Decision, GoOn
from latebind.batching.view import ModelView, WorkView, launch


class Serial(Stacked):
    """Never batches; takes the oldest request of all models."""

    def batch_limit(self, model: ModelView) -> int:
        """Return 1."""
        del model
        return 1

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch the oldest waiting request alone, once the one before it has ended."""
        del now
        if view.entries:
            return GoOn()
        model = min(view.models.waiting, key=lambda model: model.queue.turn(self.order))
        return launch(model, model.queue.first(1))
