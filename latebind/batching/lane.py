"""One model as the scheduler has it: who waits, and the figures that decide whether a newcomer can be in time."""

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
    """The queue of one model and what its requests take; with exits where they are hoped for.

    It is one more of `models`, to which it tells who may begin.
    """

    def __init__(self, served: ServedModel, models: Models, *, coverage: float, hopes: bool) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue = Queue()  # those who may begin
        self.held = Queue()  # those whose model cannot begin, for its first stages are not in memory
        self.open = True
        self.estimate = Estimate(served.spec, served.costs, coverage=coverage)
        self.view = ModelView(served.spec, self.estimate, self.queue)
        self._models = models
        models.append(self.view)
        self.seconds_per_request = 0.0  # of a worker, on average, in the batches that the policy forms
        self.heard = 0  # launches by when that was worked out
        self._limit = 1  # the largest batch that the policy forms
        self._inputs = float(TYPICAL_STEPS)  # of those who come to a decoder, the recent ones counting most
        self._least: dict[int, float] = {}  # by the steps of an input
        self._least_heard = 0  # likewise
        self._hopes = hopes and self.estimate.exits.some
        self._outlook = Outlook(-1.0, (), ())  # the last that was asked for
        self._outlook_changes = 0  # how often the pace had changed then

    def __len__(self) -> int:
        return len(self.queue) + len(self.held)

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; somebody must wait."""
        if not self.queue or not self.held:
            return (self.queue or self.held).oldest
        return min(self.queue.oldest, self.held.oldest, key=lambda request: request.id)

    def behind(self, priority: int) -> int:
        """Return how many wait who would go after a newcomer of `priority`."""
        return self.queue.behind(priority) + self.held.behind(priority)

    def waited(self, now: float) -> float:
        """Return how many seconds all have waited together."""
        return self.queue.waited(now) + self.held.waited(now)

    def add(self, request: Request) -> None:
        """Append a request."""
        if self.estimate.decoder is not None:
            self._inputs += NEWEST * (request.inputs - self._inputs)
        if self.open:
            self.queue.add(request)
            self._models.came(self.view, 1, self.seconds_per_request)
        else:
            self.held.add(request)

    def remove(self, request: int) -> None:
        """Take one out who waits."""
        if request in self.queue:
            self.queue.remove(request)
            self._models.went(self.view, 1, self.seconds_per_request)
        else:
            self.held.remove(request)

    def take(self, requests: Sequence[int]) -> dict[int, Request]:
        """Take those out who begin, and return them."""
        members: dict[int, Request] = {}
        for i in requests:
            members[i] = self.queue.remove(i)
            self._models.went(self.view, 1, self.seconds_per_request)
        return members

    def release(self, before: float = inf) -> None:
        """Let those begin who are held, in the order in which they came, up to the request `before`."""
        self._models.came(self.view, _move(self.held, self.queue, before), self.seconds_per_request)

    def withhold(self) -> None:
        """Let nobody begin."""
        self.open = False
        self._models.went(self.view, _move(self.queue, self.held), self.seconds_per_request)

    def renew(self, limit: int) -> None:
        """Count the work of each request, in batches of `limit`, as launches are known to take by now."""
        if self._hopes:
            seconds = self.estimate.exits.work(limit)
        else:
            inputs = 1 if self.estimate.decoder is None else round(self._inputs)
            seconds = self.estimate.whole(limit, inputs, self.estimate.mean_outputs) / limit
        self._limit = limit
        self._models.seconds += len(self.queue) * (seconds - self.seconds_per_request)
        self.seconds_per_request = seconds
        self.heard = self.estimate.heard

    def own(self, inputs: int, before: int) -> float:
        """Return the seconds that a newcomer takes once it begins, behind so many who wait.

        Before a decoder, behind as many as a batch holds, it will be in a crowd, where only those begin who will be in
        time together and even with a long answer. Anywhere else it may be alone.
        """
        if self.estimate.decoder is None or before < self._limit:
            return self.least(inputs)
        return self.estimate.whole(self._limit, inputs)

    def least(self, inputs: int) -> float:
        """Return the seconds that a request takes at least, alone, with as short an answer as any.

        That is to the end of the network, or to its first exit where exits are hoped for.
        """
        if self._least_heard != self.estimate.heard:
            self._least.clear()
            self._least_heard = self.estimate.heard
        found = self._least.get(inputs)
        if found is None:
            if self._hopes:
                found = self.estimate.exits.next(0, 1).seconds
            else:
                found = self.estimate.whole(1, inputs, self.estimate.fewest_outputs)
            self._least[inputs] = found
        return found

    def outlook(self, wait: float) -> Outlook:
        """Return what a request alone is to expect that waits so long before it begins."""
        if self.estimate.decoder is not None:
            return Outlook(wait, (self.estimate.whole(1, outputs=self.estimate.mean_outputs),), (1.0,))
        changes = self.estimate.pace.changes
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
