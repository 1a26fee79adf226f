"""Elastic batching: each free worker takes a batch of exactly its size (Ebird, section VII, algorithm 1).

TensorFlow Serving's policies, which the paper compares it with, are graph batching without a window ("no wait"), with
one ("optimal wait"), and on a card that computes full batches (`research.ebird.simulated.Static`).
"""

from latebind.batching.decisions import Decision, GoOn, Wait
from latebind.batching.policy import Stacked
from latebind.batching.workers import Worker

GRANULARITIES = (1, 1, 2, 4, 8, 16)  # of the paper's workers (section VI-C)


class Elastic(Stacked):
    """A worker takes as many of the oldest requests as its granularity says, where that many are ready.

    Workers are asked in the order of their granularity, the largest first, which is the walk through the idle queue of
    algorithm 1. The paper's smallest worker takes one request; if the smallest takes more, it takes what there is. No
    more are started than all workers take together (MaxInf in table II).
    """

    def decide(self, view: Worker, now: float) -> Decision:
        """Fill the worker, or leave the requests to smaller ones."""
        del now
        if view.entries:
            return GoOn()
        granularities = [one.granularity for one in view.workers] or [view.granularity]
        started = sum(one.resting for one in view.workers)  # CurInf; those aside wait for memory, not for workers
        for model in sorted(view.models.waiting, key=lambda model: model.queue.turn):
            most = min(self.batch_limit(model), view.granularity)
            ready = min(len(model.queue), sum(granularities) - started)
            if ready >= most or (ready > 0 and view.granularity == min(granularities)):
                return model.launch(model.queue.first(min(ready, most)))
        return Wait()
