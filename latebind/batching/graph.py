"""Graph batching: whole batches, closed when full or when a window has passed (LazyBatching, sections II-C and VI)."""

from math import inf

from latebind.batching.base import Stacked
from latebind.batching.decisions import Decision, GoOn, Wait
from latebind.batching.view import WorkView, launch


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
