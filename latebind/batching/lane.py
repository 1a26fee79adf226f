"""One model as the scheduler has it: who waits, and the figures that decide whether a newcomer can be in time."""

from latebind.batching.estimate import Estimate
from latebind.batching.queue import Queue
from latebind.batching.view import ModelView
from latebind.domain.config import ServedModel


class Lane:
    """The queue of one model and what its requests take; with exits where they are hoped for."""

    def __init__(self, served: ServedModel, *, coverage: float, hopes: bool) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue = Queue()
        self.estimate = Estimate(served.spec, served.costs, coverage=coverage)
        self.view = ModelView(served.spec, self.estimate, self.queue)
        self.seconds_per_request = 0.0  # of a worker, at the largest batch that the policy forms
        self._hopes = hopes and self.estimate.exits.some

    def least(self, inputs: int) -> float:
        """Return the seconds that a request takes at least, alone, with as short an answer as any.

        That is to the end of the network, or to its first exit where exits are hoped for.
        """
        if self._hopes:
            return self.estimate.exits.next(0, 1).seconds
        return self.estimate.whole(1, inputs, self.estimate.fewest_outputs)

    def whole(self, batch: int) -> float:
        """Return the seconds of a batch, to the end or until all are expected to have left."""
        if self._hopes:
            return self.estimate.exits.all(0, batch).seconds
        return self.estimate.whole(batch)
