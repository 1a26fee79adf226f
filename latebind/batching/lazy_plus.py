"""`lazy+`: work-conserving, without a window; new requests preempt only where that lowers the sum of latencies.

An idle worker starts the most urgent waiting requests, as many as clear the queue with the least waiting in all. At a
stage boundary, new requests may start at once if by the profile the sum of all latencies falls, all requests stay in
time (`Slack`), and none is delayed for too long. One group at a time catches up.
"""

from collections.abc import Iterable, Sequence
from math import inf

from latebind.batching.decisions import Decision, GoOn, Shed, Wait
from latebind.batching.graph import Stacked
from latebind.batching.policy import ModelView, WorkView, launch
from latebind.batching.queue import Order, Request
from latebind.batching.table import SubBatch
from latebind.domain.config import PolicyConfig
from latebind.domain.model import StageKind

# In units of the batch's whole running time:
BOUND = 1.0  # the most delay of a request by new requests that catch up with it
BOUND_PASSING = 0.25  # the most delay by requests of another model, which never join its batch
HELD_ONCE = 0.25  # the usual delay of a request
PATIENCE = 0.6  # after requests of another model have waited for this, no request joins the batch any more

BELIEVED = 0.9  # of the highest throughput: no arrival rate above it is believed

ALIKE = 0.9  # of the most tokens a second counts as equally many: costs are not known better

LEAST_FIXED = 0.1  # the least share of a step's time that does not depend on the batch size


class LazyPlus(Stacked):
    """Decides only by deadlines and measured costs."""

    order = Order.DEADLINE

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self._slack = Slack()

    def batch_limit(self, model: ModelView) -> int:
        """Return the largest batch that makes requests quicker, at most the configured one."""
        return model.estimate.worth_batching(self.most(model))

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, shed or go on."""
        if view.entries:
            return self._at_a_boundary(view, now)
        model = min(view.models.waiting, key=lambda model: model.queue.turn(self.order))
        most = self._share(view, model, now)
        if not most:
            return Wait()
        most = quickest(model, most, now, view.models.requests - len(model.queue))
        batch = self._in_time_together(model, most, 0, now) or model.queue.urgent(1)
        return self._shed(model, batch, len(batch), now) or launch(model, batch)

    def _share(self, view: WorkView, model: ModelView, now: float) -> int:
        """Return the most requests that an idle worker may start."""
        del now
        return min(self.most(model), view.granularity, len(model.queue))

    def _in_time_together(self, model: ModelView, most: int, beside: int, now: float) -> Sequence[Request]:
        """Return at most `most` requests to start, `beside` the started requests of their model.

        If not all can be in time in one batch, these are the requests that fill the largest batch that can be, or a
        smaller one that is nearly as quick per request, with the usual delay. The others are passed over: they may be
        in time in the next batch.
        """
        newcomers = model.queue.alike(most) if model.spec.kinds else model.queue.urgent(most)
        if not self._config.shed or model.estimate.decoder is not None:
            return newcomers
        whole, inputs = model.estimate.whole, longest(newcomers) if model.spec.kinds else 1
        ends = now + (1.0 + HELD_ONCE * (len(model.queue) > most)) * whole(len(newcomers) + beside, inputs)
        if all(request.deadline >= ends for request in newcomers):
            return newcomers
        count = filled(model, len(newcomers), beside, inputs, now)
        if count and not beside:
            count = model.estimate.answered(count).enough
        return model.queue.urgent(count, due=now + (1.0 + HELD_ONCE) * whole(count + beside, inputs)) if count else ()

    def _shed(self, model: ModelView, newcomers: Sequence[Request], together: int, now: float) -> Shed | None:
        """Return the requests that cannot be in time in a batch of size `together` that starts now, or None.

        Only before a decoder, which is joined at any step; elsewhere such requests are passed over. Where more requests
        wait than can start, places are for those that will be in time even with a long answer and the usual delay.
        """
        if not self._config.shed or model.estimate.decoder is None:
            return None
        inputs = longest(newcomers)
        if len(model.queue) > len(newcomers):
            ends = now + (1.0 + HELD_ONCE) * model.estimate.whole(together, inputs)
        else:
            ends = now + model.estimate.whole(together, inputs, model.estimate.mean_outputs)
        lost = [request.id for request in newcomers if request.deadline < ends]
        return Shed(model.name, tuple(lost)) if lost else None

    def _at_a_boundary(self, view: WorkView, now: float) -> Decision:
        top = view.entries[-1]
        if len(view.entries) > 1:
            return GoOn()
        own = view.model_of(top)
        closed = self._closed(view, own, top, now)
        for model in sorted(view.models.waiting, key=_alone):
            room = min(self.room(view, model), len(model.queue))
            if room > 0 and model is own:
                if closed or not gathered(own, top, room, now):
                    continue
                if top.kind is StageKind.DECODER:
                    room = sharing(own, len(top.members), room)
            if room <= 0:
                continue
            newcomers = self._in_time_together(model, room, view.started(model), now)
            if not newcomers:
                continue
            shed = self._shed(model, newcomers, len(newcomers) + view.started(model), now)
            if shed is not None:
                return shed
            if (
                self._pays(own, top, model, newcomers)
                and not self._held_up(own, top, model, newcomers)
                and self._slack.all_in_time(view, model, newcomers, now)
            ):
                return launch(model, newcomers)
        return GoOn()

    def _closed(self, view: WorkView, own: ModelView, top: SubBatch, now: float) -> bool:
        """Return whether requests of another model have waited for so long that no request may join the batch."""
        most = PATIENCE * own.estimate.whole(len(top.members), top.inputs)
        others = [model.queue for model in view.models.waiting if model is not own]
        return any(now - queue.oldest.arrived > most for queue in others)

    def _pays(self, own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
        """Return whether the sum of latencies falls if `newcomers` start before the running batch goes on."""
        if model is not own:
            return passing_pays(own, top, model, newcomers)
        return top.kind is StageKind.DECODER or joining_pays(own, top, newcomers)

    def _held_up(self, own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
        """Return whether a request of the running batch would have been delayed for too long in all."""
        inputs, whole = longest(newcomers), own.estimate.whole(len(top.members), top.inputs)
        if model is own:
            most = BOUND * whole - own.estimate.between(len(newcomers), top.stage, top.step, inputs)
        else:
            most = BOUND_PASSING * whole - model.estimate.whole(len(newcomers), inputs, model.estimate.mean_outputs)
        return any(request.delayed > most for request in top.members.values())


class Slack:
    """Whether all stay in time, by the elapsed time and the work that remains at the batch size that results.

    A request that is late already does not count: it would keep all others waiting for nothing.
    """

    def length(self, request: Request) -> int | None:
        """Return how many steps the answer of a request has, None where that is not known beforehand."""
        del request
        return None

    def all_in_time(self, view: WorkView, model: ModelView, newcomers: Sequence[Request], now: float) -> bool:
        """Return whether all are in time if `newcomers` catch up with the newest sub-batch.

        If that sub-batch belongs to another model, they run before it instead.
        """
        estimate, inputs, below = model.estimate, longest(newcomers), view.entries
        if not below or below[-1].spec is not model.spec:
            ends = now + estimate.whole(len(newcomers), inputs, self._longest(newcomers))
        else:
            # 1. Those that they join.
            top, below = below[-1], below[:-1]
            running, together = len(top.members), [*top.members.values(), *newcomers]
            caught_up, steps = (
                now + estimate.between(len(newcomers), top.stage, top.step, inputs),
                max(top.inputs, inputs),
            )
            for request in top.members.values():
                answer = self.length(request)
                if answer is None and request.steps:
                    answer = estimate.outputs_after(request.steps)
                place = top.stage, request.steps or top.step, steps, answer
                in_time = now + estimate.rest(running, *place) <= request.deadline
                if in_time and caught_up + estimate.rest(len(together), *place) > request.deadline:
                    return False
            ends = caught_up + estimate.rest(len(together), top.stage, top.step, steps, self._longest(together))
        # 2. They themselves, unless they would be late even alone.
        for request in newcomers:
            alone = now + estimate.whole(1, request.inputs, self.length(request))
            if request.deadline < ends and alone <= request.deadline:
                return False
        # 3. The sub-batches below, which resume then.
        for entry in reversed(below):
            done = min(request.steps for request in entry.members.values()) or entry.step
            answers = self._longest(entry.members.values())
            costs = view.model_of(entry).estimate
            rest = costs.rest(len(entry.members), entry.stage, done, entry.inputs, answers)
            ends += rest
            if any(r.deadline < ends and r.deadline >= now + rest for r in entry.members.values()):
                return False
        return True

    def _longest(self, requests: Iterable[Request]) -> int | None:
        known = [length for request in requests if (length := self.length(request)) is not None]
        return max(known, default=None)


def quickest(model: ModelView, most: int, now: float, others: int = 0) -> int:
    """Return how many waiting requests an idle worker should start together, at most `most`.

    Q requests of the model wait, O `others` wait for other models, and requests arrive at a rate r. A batch of b takes
    T(b). All together spend T(b) (Q + O) + r T(b)^2 / 2 seconds here until it ends, and Q - b + r T(b) of the model
    wait then. Let V(Q) be the seconds that all requests together will spend here. Expanded to second order, its slope
    is V'(Q) = (Q + b / 2 + O) / (b / T(b) - r), and the b for which that is least starts. A server of batches is a
    Markov decision process; value iteration, which knows r, finds hardly anything better.

    The rate is the mean of some twenty gaps, so it is often above the throughput of all batches, where the cost means
    nothing. No more than `BELIEVED` of the highest throughput is taken. A decoder takes others in at each step, so what
    counts there is how many should share one (`sharing`).
    """
    waiting = len(model.queue)
    if most == 1:
        return most
    if model.estimate.decoder is not None:
        return sharing(model, 0, most)
    answered = model.estimate.answered(most)
    coming = min(model.queue.rate(now), BELIEVED * answered.most)
    best, least = answered.quickest, inf
    for batch, rate in answered.rates:
        there = waiting + 0.5 * batch + others
        if rate > coming and there < least * (rate - coming):
            least, best = there / (rate - coming), batch
    return best


def sharing(model: ModelView, running: int, most: int) -> int:
    """Return how many of up to `most` new requests should share decoder steps with `running` ones.

    As many as let the steps write nearly the most tokens a second. Costs jump behind each batch size that steps are
    compiled for: there one request more holds all others up for longer than it would wait for one of them to leave.
    """
    least = 0 if running else 1
    rates = model.estimate.tokens(running + most)[running + least - 1 :]
    enough = ALIKE * max(rates)
    return least + max(place for place, rate in enumerate(rates) if rate >= enough)


def filled(model: ModelView, most: int, beside: int, inputs: int, now: float) -> int:
    """Return the most requests that can start now, `beside` others, and all be in time with the usual delay; or 0.

    A request with a priority is never passed over, so the first of these must be in time as well.
    """
    queue, whole, least = model.queue, model.estimate.whole, 0
    prior = queue.urgent(1)[0]
    last = prior.deadline if prior.priority else inf
    while least < most:
        middle = (least + most + 1) // 2
        if min(last, queue.due_last(middle)) >= now + (1.0 + HELD_ONCE) * whole(middle + beside, inputs):
            least = middle
        else:
            most = middle - 1
    return least


def gathered(model: ModelView, top: SubBatch, coming: int, now: float) -> bool:
    """Return whether `coming` new requests are enough to catch up with a decoder; before other stages, any number is.

    Part of the cost of catching up is fixed. In groups of k, requests that arrive at a rate r wait k / 2r each and
    share that delay d; the best is k = sqrt(2 r d). No more can join than leave.

    Where more requests wait than there are places, throughput is what counts. An empty place costs its share of the
    fixed part f of a step. Groups of k leave k / 2 places empty on average, and the work per request, c / k + m f /
    (n - k / 2) with m steps and n places, is least for k = (n - k / 2) sqrt(2 c / m f).
    """
    if top.kind is not StageKind.DECODER:
        return True
    estimate, running, crowded = model.estimate, len(top.members), len(model.queue) > coming
    inputs = longest(model.queue.urgent(1 if crowded else coming))  # of a crowd, requests of similar length start
    once, twice = (estimate.between(n, top.stage, top.step, inputs) for n in (coming, 2 * coming))
    shared, unit = max(0.0, 2.0 * once - twice), estimate.unit(running, top.stage)
    if crowded:
        fixed = max(LEAST_FIXED * unit, 2.0 * unit - estimate.unit(2 * running, top.stage))
        return coming * coming * model.estimate.mean_outputs * fixed >= 2.0 * shared * (running + 0.5 * coming) ** 2
    rate = min(model.queue.rate(now), running / (model.estimate.mean_outputs * unit))
    return coming * coming >= 2.0 * rate * running * shared


def joining_pays(model: ModelView, top: SubBatch, newcomers: Sequence[Request]) -> bool:
    """Return whether new requests should catch up with a batch of their own model that is not at a decoder."""
    estimate = model.estimate
    running, coming = len(top.members), len(newcomers)
    inputs, outputs = longest(newcomers), model.estimate.mean_outputs
    caught_up = estimate.between(coming, top.stage, top.step, inputs)
    rest = estimate.rest(running, top.stage, top.step, top.inputs, outputs)
    after = estimate.rest(running + coming, top.stage, top.step, max(inputs, top.inputs), outputs)
    whole = estimate.whole(coming, inputs, outputs)
    return (running + coming) * (caught_up + after) < running * rest + coming * (rest + whole)


def passing_pays(own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
    """Return whether requests of another model should run before the running batch goes on: shorter work first."""
    delay = model.estimate.whole(len(newcomers), longest(newcomers), model.estimate.mean_outputs)
    steps = min(request.steps for request in top.members.values()) or top.step
    rest = own.estimate.rest(len(top.members), top.stage, steps, top.inputs, own.estimate.mean_outputs)
    return len(top.members) * delay < len(newcomers) * rest


def _alone(model: ModelView) -> float:
    return model.estimate.whole(1, model.queue.urgent(1)[0].inputs)


def longest(requests: Iterable[Request]) -> int:
    """Return the steps of the longest input."""
    return max(request.inputs for request in requests)
