"""One model as the scheduler has it: its waiting requests, and the estimates that admission needs."""

from collections.abc import Sequence
from math import inf

from latebind.batching.estimate import Estimate
from latebind.batching.queue import NEWEST, Queue
from latebind.batching.request import Request
from latebind.batching.view import Models, ModelView
from latebind.domain.config import ServedModel
from latebind.domain.costs import TYPICAL_STEPS
from latebind.domain.outlook import Outlook


class Lane:
    """The queues of one model and the work of its requests, counting on exits where it `hopes` for them.

    It adds itself to `models` and keeps the totals there up to date.
    """

    def __init__(self, served: ServedModel, models: Models, *, coverage: float, hopes: bool) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue = Queue()  # requests that may start
        self.held = Queue()  # requests that may not start yet, because their model is not in memory
        self.open = True
        self.estimate = Estimate(served.spec, served.costs, coverage=coverage)
        self.view = ModelView(served.spec, self.estimate, self.queue)
        self._models = models
        models.append(self.view)
        self._alone = 0.0  # work of a request that is not in a batch
        self.seconds_per_request = 0.0  # average work of a worker, in batches that the policy forms
        self.observed = 0  # `Estimate.observed` when `seconds_per_request` was computed
        self._limit = 1  # the largest batch that the policy forms
        self._inputs = float(TYPICAL_STEPS)  # mean input steps of a model with a decoder, exponentially weighted
        self._least: dict[int, float] = {}  # the results of `least`, by input steps
        self._least_observed = 0  # `Estimate.observed` when `_least` was last cleared
        self._hopes = hopes and self.estimate.exits.some
        self._outlook = Outlook(-1.0, (), ())  # the last result of `outlook`
        self._outlook_changes = 0  # `Exits.changes` when it was computed

    def __len__(self) -> int:
        return len(self.queue) + len(self.held)

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; at least one must wait."""
        if not self.queue or not self.held:
            return (self.queue or self.held).oldest
        return min(self.queue.oldest, self.held.oldest, key=lambda request: request.id)

    def behind(self, priority: int) -> int:
        """Return how many waiting requests would go after a new one of `priority`."""
        return self.queue.behind(priority) + self.held.behind(priority)

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return self.queue.waited(now) + self.held.waited(now)

    def came(self, requests: int, now: float) -> None:
        """Note that so many requests have come, whether or not they will be accepted."""
        for _ in range(requests):
            self._models.load.add(now, self._alone, self.seconds_per_request, self._limit)

    def add(self, request: Request) -> None:
        """Queue a request, or hold it while the lane is closed."""
        if self.estimate.decoder is not None:
            self._inputs += NEWEST * (request.inputs - self._inputs)
        if self.open:
            self.queue.add(request)
            self._models.enqueued(self.view, 1, self.seconds_per_request)
        else:
            self.held.add(request)

    def remove(self, request: int) -> None:
        """Remove a waiting request."""
        if request in self.queue:
            self.queue.remove(request)
            self._models.dequeued(self.view, 1, self.seconds_per_request)
        else:
            self.held.remove(request)

    def take(self, requests: Sequence[int]) -> dict[int, Request]:
        """Remove requests that start, and return them by id."""
        members: dict[int, Request] = {}
        for i in requests:
            members[i] = self.queue.remove(i)
            self._models.dequeued(self.view, 1, self.seconds_per_request)
        return members

    def release(self, before: float = inf) -> None:
        """Move held requests with an id below `before` to the queue, so that they may start."""
        self._models.enqueued(self.view, _move(self.held, self.queue, before), self.seconds_per_request)

    def withhold(self) -> None:
        """Close the lane, and hold all requests that have not started."""
        self.open = False
        self._models.dequeued(self.view, _move(self.queue, self.held), self.seconds_per_request)

    def update_work(self, limit: int) -> None:
        """Recompute the work of each request, in batches of `limit`, from the launches observed so far."""
        self._alone, seconds = self._work(1), self._work(limit)
        self._limit = limit
        self._models.seconds += len(self.queue) * (seconds - self.seconds_per_request)
        self.seconds_per_request = seconds
        self.observed = self.estimate.observed

    def _work(self, batch: int) -> float:
        if self._hopes:
            return self.estimate.exits.work(batch)
        inputs = 1 if self.estimate.decoder is None else round(self._inputs)
        return self.estimate.whole(batch, inputs, self.estimate.mean_outputs) / batch

    def own(self, inputs: int, before: int) -> float:
        """Return the seconds that a new request takes once it starts, with `before` requests waiting ahead of it.

        With a decoder and at least a full batch ahead, it is taken to run in a full batch and to have a long answer,
        because policies then start only requests that will be in time even so. Otherwise it may run alone.
        """
        if self.estimate.decoder is None or before < self._limit:
            return self.least(inputs)
        return self.estimate.whole(self._limit, inputs)

    def least(self, inputs: int) -> float:
        """Return the least seconds that a request takes: alone, with the shortest answer of all.

        That is to the end of the network, or to its first exit where the lane counts on exits.
        """
        if self._least_observed != self.estimate.observed:
            self._least.clear()
            self._least_observed = self.estimate.observed
        found = self._least.get(inputs)
        if found is None:
            if self._hopes:
                found = self.estimate.exits.next(0, 1).seconds
            else:
                found = self.estimate.whole(1, inputs, self.estimate.fewest_outputs)
            self._least[inputs] = found
        return found

    def outlook(self, wait: float) -> Outlook:
        """Return what a request can expect that runs alone after waiting `wait` seconds."""
        if self.estimate.decoder is not None:
            return Outlook(wait, (self.estimate.whole(1, outputs=self.estimate.mean_outputs),), (1.0,))
        changes = self.estimate.exits.changes
        if wait != self._outlook.wait or changes != self._outlook_changes:
            self._outlook = Outlook(wait, *self.estimate.exits.ends)
            self._outlook_changes = changes
        return self._outlook


def _move(source: Queue, target: Queue, before: float = inf) -> int:
    moved = [request for request in source.values() if request.id < before]
    for request in moved:
        source.remove(request.id)
        target.add(request)
    return len(moved)
