"""Graph batching: whole batches, closed when full or when a window has passed (LazyBatching, sections II-C and VI)."""

from math import inf

from latebind.batching.view import Decision, Launch, ModelView, Wait, WorkView
from latebind.domain.config import PolicyConfig


class GraphBatching:
    """Launches a batch once `max_batch` requests of a model wait or its oldest has waited `window` seconds.

    Window 0 takes whatever waits when a worker is free, which is the strong baseline.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self._max_batch = config.max_batch
        self._window = config.window

    def batch_limit(self, model: ModelView) -> int:
        """Return the configured maximum, at most what the model was built for."""
        return min(self._max_batch or model.max_batch, model.max_batch)

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch the ripe batch whose oldest request has waited longest, or wait until one is ripe."""
        ripe, first, wake = None, inf, inf
        for model in view.models:
            if not model.queue:
                continue
            arrived = model.oldest.arrived
            due = arrived if len(model.queue) >= self.batch_limit(model) else arrived + self._window
            if due > now:
                wake = min(wake, due)
            elif arrived < first:
                ripe, first = model, arrived
        if ripe is None:
            return Wait(wake)
        return Launch(ripe.name, tuple(ripe.first(self.batch_limit(ripe))))
