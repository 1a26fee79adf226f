"""Serial execution: one request at a time, in the order of arrival (LazyBatching, section VI, baseline "Serial")."""

from latebind.batching.view import Decision, Launch, ModelView, WorkView
from latebind.domain.config import PolicyConfig


class Serial:
    """Never batches; takes the oldest request of all models."""

    def __init__(self, config: PolicyConfig) -> None:
        del config

    def batch_limit(self, model: ModelView) -> int:
        """Return 1."""
        del model
        return 1

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch the oldest waiting request alone."""
        del now
        model = min((m for m in view.models if m.queue), key=lambda m: m.oldest.arrived)
        return Launch(model.name, (model.oldest.id,))
