"""The policies that LazyBatching is compared with (sections II-C, III and VI), and LazyBatching as published.

Serial execution is graph batching with batches of one: `PolicyConfig("graph", 1)`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf

from latebind.batching.decisions import Decision, GoOn
from latebind.batching.late import all_in_time
from latebind.batching.policy import GraphBatching, Stacked
from latebind.batching.requests import Lane, Request
from latebind.batching.workers import BatchTable, Stack, SubBatch, Worker
from latebind.domain.config import PolicyConfig
from latebind.domain.model import StageKind

SHARE = 0.9  # of the answers that are no longer than `lazy` expects (section IV-C)


class Continuous(GraphBatching):
    """At each decoder step, all waiting requests run the earlier stages and join (Orca, Yu et al. 2022).

    Requests that are catching up are not overtaken. Stages that run once are never interrupted: a model of these alone
    is batched as by `graph`.
    """

    def decide(self, view: Worker, now: float) -> Decision:
        """Launch as many requests of the decoding model as there is room for."""
        if not view.entries:
            return super().decide(view, now)
        top = view.entries[-1]
        model = view.model_of(top)
        room = self.room(view, model)
        if len(view.entries) > 1 or top.kind is not StageKind.DECODER or room <= 0 or not model.queue:
            return GoOn()
        return model.launch(model.queue.first(room))


class Cellular(Continuous):
    """Gao et al. 2018 (section III-B): only a model that is recurrent throughout is joined on its way."""

    def decide(self, view: Worker, now: float) -> Decision:
        """Let new requests into a running cell; any other model is batched as a whole graph."""
        if view.entries and view.model_of(view.entries[-1]).spec.kind(0) is not StageKind.DECODER:
            return GoOn()
        return super().decide(view, now)


class Lazy(Stacked):
    """LazyBatching as published (sections IV-A to IV-C): at stage boundaries waiting requests preempt with slack.

    Starts as many of the oldest requests as leave all with slack; an idle worker takes all of them if none do. Slack is
    by equation 2: requests that run together are taken to run one after another, each for as long as it takes alone.
    The time until a request first ran counts as waiting; its work counts as a whole, however much of it is done.
    """

    def decide(self, view: Worker, now: float) -> Decision:
        """Launch the requests that may start, of the model whose oldest request has waited longest."""
        for model in sorted(view.models.waiting, key=lambda model: model.queue.turn):
            waiting = model.queue.first(self.room(view, model))
            count = self.fitting(view, model, waiting, now) if waiting else 0
            if not view.entries:
                count = count or len(waiting)
            if count:
                return model.launch(waiting[:count])
        return GoOn()

    def fitting(self, view: Worker, model: Lane, waiting: Sequence[Request], now: float) -> int:
        """Return how many of `waiting`, from the first, may start without negative slack for any request."""
        work, left = 0.0, inf
        for entry in view.entries:
            of = view.model_of(entry)
            for request in entry.members.values():
                work += self._alone(of, request)
                left = min(left, request.deadline - request.started)
        for count, request in enumerate(waiting):
            work += self._alone(model, request)
            left = min(left, request.deadline - now)
            if work > left:
                return count
        return len(waiting)

    def _alone(self, model: Lane, request: Request) -> float:
        lengths = model.estimate.lengths
        return model.estimate.whole(1, request.inputs, lengths[max(0, ceil(SHARE * len(lengths)) - 1)])


class Oracle(Lazy):
    """The same greedy rule with true costs and lengths (section VI), for simulations alone; this is not an optimum.

    `lengths` has the steps of each request's answer, by its number. The simulation that knows them sets it.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.lengths: Mapping[int, int] = {}

    def fitting(self, view: Worker, model: Lane, waiting: Sequence[Request], now: float) -> int:
        """Return the largest number of `waiting` that keeps all in time."""
        return bisect_left(
            range(1, len(waiting) + 1),
            True,
            key=lambda count: not all_in_time(view, model, waiting[:count], now, lambda r: self.lengths.get(r.id)),
        )


class Waiting(GraphBatching):
    """Graph batching as frameworks do it, and as GATI's section 7.2.1 has it: nobody leaves a batch before its end.

    A request that has its answer waits until all others of its batch have theirs.
    """

    def table(self) -> BatchTable:
        """Return an empty table that holds answers back."""
        return _Held()


class _Held(Stack):
    def __init__(self) -> None:
        super().__init__()
        self._left_at: dict[int, int] = {}  # requests that have their answer, and the first stage that gave one

    def leaving(self, batch: SubBatch, answered: Iterable[int], stage: int) -> Sequence[tuple[int, int]]:
        for request in answered:
            self._left_at.setdefault(request, stage)
        if any(request not in self._left_at for request in batch.members):
            return ()
        return [(request, self._left_at.pop(request)) for request in batch.members]
