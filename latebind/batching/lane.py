"""One model as the scheduler has it: its waiting requests, and the estimates that admission needs."""

from collections.abc import Sequence
from math import inf

from latebind.batching.estimate import Estimate
from latebind.batching.queue import NEWEST, Queue, Turn, rank
from latebind.batching.request import Request
from latebind.batching.view import Models, ModelView
from latebind.domain.config import ServedModel
from latebind.domain.costs import TYPICAL_STEPS
from latebind.domain.outlook import Outlook

RETRY = 0.5  # seconds; so a model is tried again this long after the machine has been slow for up to ten seconds
RETRY_SHARE = 0.05  # of the time for which a model has been refused, it waits until it is tried again
RETRY_AT_MOST = 10.0  # seconds; no model is refused by an estimate alone for longer
CHANGED = 0.1  # relative change of the work of a request at which that of those who wait is corrected


class Lane:
    """The queues of one model and the work of its requests, counting on exits where it `hopes` for them.

    It adds itself to `models` and keeps the totals there up to date.
    """

    def __init__(self, served: ServedModel, models: Models, *, hopes: bool) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue = Queue()  # requests that may start
        self.held = Queue()  # requests that may not start yet, because their model is not in memory
        self.open = True
        self.estimate = Estimate(served.spec, served.costs)
        self.view = ModelView(served.spec, self.estimate, self.queue)
        self._models = models
        models.append(self.view)
        self.seconds_per_request = 0.0  # average work of a worker, in batches that the policy forms
        self._weighed = 0.0  # `seconds_per_request` when the work of waiting requests was last corrected
        self.observed = 0  # `Estimate.observed` when `seconds_per_request` was computed
        self._limit = 1  # the largest batch that the policy forms
        self._inputs = float(TYPICAL_STEPS)  # mean input steps of a model with a decoder, exponentially weighted
        self._least: dict[int, float] = {}  # the results of `least`, by input steps
        self._least_observed = 0  # `Estimate.observed` when `_least` was last cleared
        self._hopes = hopes and self.estimate.exits.some
        self._outlook = Outlook(-1.0, (), ())  # the last result of `outlook`
        self._outlook_changes = 0  # `Exits.changes` when it was computed
        self._refused_since = inf  # when a request was first refused for the estimate, if none was accepted since
        self._doubted_at = -inf  # when the estimate was last doubted, or that was

    def __len__(self) -> int:
        return len(self.queue) + len(self.held)

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; at least one must wait."""
        if not self.queue or not self.held:
            return (self.queue or self.held).oldest
        return min(self.queue.oldest, self.held.oldest, key=lambda request: request.id)

    def turn(self, deadline: float, arrived: float, priority: int, number: int) -> Turn:
        """Return the turn of a new request among those of all models that may start.

        With a priority it passes others of its model, and so comes when the first of these would have come.
        """
        order = self._models.order
        own = order.place(deadline, arrived)
        return self.queue.passed(own, priority, order), rank(priority), own, number

    def ahead(self, place: float, priority: int) -> tuple[int, int]:
        """Return how many queued and held requests of this model go before a new one at this place of the order."""
        order = self._models.order
        return self.queue.ahead(place, priority, order), self.held.ahead(place, priority, order)

    def pulled(self, turn: Turn) -> float:
        """Return the work of those with a priority whose own turn comes later than that of a new request, which must
        wait for them."""
        return len(self._pulled(turn)) * self.seconds_per_request if turn[1] > 1 else 0.0

    def _pulled(self, turn: Turn) -> list[Request]:
        backlog = self._models.backlog
        return [r for r in self.queue.prior if r.priority < turn[1] and backlog.turn(r.id) > turn]

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return self.queue.waited(now) + self.held.waited(now)

    def add(self, request: Request) -> None:
        """Queue a request, or hold it while the lane is closed."""
        if self.estimate.decoder is not None:
            self._inputs += NEWEST * (request.inputs - self._inputs)
        if self.open:
            self._enqueue(request)
        else:
            self.held.add(request)

    def remove(self, request: int) -> None:
        """Remove a waiting request."""
        if request in self.queue:
            self._dequeue(request)
        else:
            self.held.remove(request)

    def take(self, requests: Sequence[int]) -> dict[int, Request]:
        """Remove requests that start, and return them by id."""
        return {i: self._dequeue(i) for i in requests}

    def accepted(self) -> None:
        """Note that a request has been accepted."""
        if not self.estimate.doubted:
            self._refused_since = inf

    def doubts(self, now: float) -> bool:
        """Note that a request was refused for the estimate while nothing of the model ran; return whether to doubt it.

        If so, until a launch shows more the model is taken to need the least that is believed of any. That happens
        `RETRY` seconds after the first such refusal and then again and again, and less often the longer launches have
        shown nothing better: what no request can meet should not cost others more and more work.
        """
        if self._refused_since == inf:
            self._refused_since = self._doubted_at = now
            return False
        if now - self._doubted_at < min(RETRY_AT_MOST, max(RETRY, RETRY_SHARE * (now - self._refused_since))):
            return False
        self._doubted_at = now
        self.estimate.doubt()
        return True

    def release(self, before: float = inf) -> None:
        """Move held requests with an id below `before` to the queue, so that they may start."""
        for request in [request for request in self.held.values() if request.id < before]:
            self.held.remove(request.id)
            self._enqueue(request)

    def withhold(self) -> None:
        """Close the lane, and hold all requests that have not started."""
        self.open = False
        for request in list(self.queue):
            self.held.add(self._dequeue(request))

    def _enqueue(self, request: Request) -> None:
        backlog = self._models.backlog
        turn = self.turn(request.deadline, request.arrived, request.priority, request.id)
        for prior in self._pulled(turn):
            backlog.move(prior.id, (turn[0], *backlog.turn(prior.id)[1:]))
        self.queue.add(request)
        self._models.enqueued(self.view, 1)
        backlog.add(request.id, turn, self.seconds_per_request, request.deadline - self.least(request.inputs))

    def _dequeue(self, number: int) -> Request:
        request = self.queue.remove(number)
        self._models.dequeued(self.view, 1)
        self._models.backlog.remove(number)
        return request

    def update_work(self, limit: int) -> None:
        """Recompute the work of each request, in batches of `limit`, from the launches observed so far."""
        seconds = self._work(limit)
        self._limit = limit
        self.seconds_per_request = seconds
        self.observed = self.estimate.observed
        if abs(seconds - self._weighed) > CHANGED * self._weighed:
            self._weighed = seconds
            for request in self.queue.values():
                latest = request.deadline - self.least(request.inputs)
                self._models.backlog.weigh(request.id, seconds, latest)

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
