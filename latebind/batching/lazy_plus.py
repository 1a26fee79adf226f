"""`lazy+`: work-conserving, without a window; newcomers are let past only where that shortens the sum of waiting.

A worker without work takes as many of those who wait as end the queue with the least waiting, the most urgent first. At
a boundary newcomers may begin at once if by the profile the sum of all latencies falls, if everybody keeps in time
(`slack.Profiled`), and if nobody is held up for too long. One group at a time catches up.
"""

from collections.abc import Iterable, Sequence
from math import inf

from latebind.batching.base import Stacked
from latebind.batching.decisions import Decision, GoOn, Shed, Wait
from latebind.batching.request import Request
from latebind.batching.slack import Profiled
from latebind.batching.table import SubBatch
from latebind.batching.view import ModelView, WorkView, launch
from latebind.domain.config import PolicyConfig
from latebind.domain.model import StageKind

# In units of what the batch takes as a whole:
BOUND = 1.0  # by which those who catch up may hold up a request
BOUND_PASSING = 0.25  # by which those of another model may, who never join it
HELD_ONCE = 0.25  # by which anybody is held up as a rule
PATIENCE = 0.6  # for which those of another model wait before nobody joins any more

CROWD = 2.0  # times the quickest batch: where so many wait, what counts is how many are answered in all
SURE = 0.94  # of what can be answered: as much is believed to come, and no more until a crowd waits

LEAST_FIXED = 0.1  # share of a step that is taken to be the same for few and for many


class LazyPlus(Stacked):
    """Decides by deadlines and measured costs alone."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self._slack = Profiled()

    def batch_limit(self, model: ModelView) -> int:
        """Return the largest batch that makes requests quicker, at most what is configured."""
        return model.estimate.worth_batching(self.most(model))

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, shed or go on."""
        if view.entries:
            return self._at_a_boundary(view, now)
        model = min(view.models.waiting, key=lambda model: model.queue.urgent(1)[0].deadline)
        most = self._share(view, model)
        if not most:
            return Wait()
        most = quickest(model, most, now, view.models.requests - len(model.queue))
        batch = self._in_time_together(model, most, 0, now) or model.queue.urgent(1)
        return self._shed(model, batch, len(batch), now) or launch(model, batch)

    def _share(self, view: WorkView, model: ModelView) -> int:
        """Return the most that a worker without work may begin."""
        return min(self.most(model), view.granularity, len(model.queue))

    def _in_time_together(self, model: ModelView, most: int, beside: int, now: float) -> Sequence[Request]:
        """Return who begins, at most so many, `beside` those of their model who have begun.

        If not all may be in time in one batch, those who can fill the largest one in time, or a smaller one that is
        nearly as quick for each, held up as may be. The others are passed over: they may be in time in the next one.
        """
        newcomers = pick(model, most)
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
        """Return who cannot be in time in a batch of so many `together` that would start now, if anybody.

        Only before a decoder, which is joined at any step; elsewhere they are passed over. Where more wait than can
        begin, places are for those who will be in time even with a long answer and held up as much as is usual.
        """
        if not self._config.shed or model.estimate.decoder is None:
            return None
        inputs = longest(newcomers)
        if len(model.queue) > len(newcomers):
            ends = now + (1.0 + HELD_ONCE) * model.estimate.whole(together, inputs)
        else:
            ends = now + model.estimate.whole(together, inputs, mean(model))
        lost = [request.id for request in newcomers if request.deadline < ends]
        return Shed(model.name, tuple(lost)) if lost else None

    def _at_a_boundary(self, view: WorkView, now: float) -> Decision:
        top = view.entries[-1]
        if len(view.entries) > 1:
            return GoOn()
        own = view.model_of(top)
        closed = self._closed(view, own, top, now)
        for model in sorted(view.models.waiting, key=alone):
            room = self.room(view, model)
            if room <= 0 or (model is own and (closed or not gathered(own, top, min(room, len(own.queue)), now))):
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
        """Tell whether those of another model have waited for so long that the batch is to come to its end."""
        most = PATIENCE * own.estimate.whole(len(top.members), top.inputs)
        others = [model.queue for model in view.models.waiting if model is not own]
        return any(now - queue.oldest.arrived > most for queue in others)

    def _pays(self, own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
        """Tell whether the sum of latencies falls if these begin before the running batch goes on."""
        if model is not own:
            return passing_pays(own, top, model, newcomers)
        return top.kind is StageKind.DECODER or joining_pays(own, top, newcomers)

    def _held_up(self, own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
        """Tell whether someone would have been held up for too long."""
        inputs, whole = longest(newcomers), own.estimate.whole(len(top.members), top.inputs)
        if model is own:
            most = BOUND * whole - own.estimate.between(len(newcomers), top.stage, top.step, inputs)
        else:
            most = BOUND_PASSING * whole - model.estimate.whole(len(newcomers), inputs, mean(model))
        return any(request.delayed > most for request in top.members.values())


def quickest(model: ModelView, most: int, now: float, others: int = 0) -> int:
    """Return how many of those who wait should begin together, at most `most`, on a worker that has nothing to do.

    Q requests wait and others come at a rate r, while batches of b, which take T(b), answer m = b / T(b) a second. The
    queue is gone after Q / (m - r). Of those who leave it together each stays for his whole batch, so that until then
    (Q + b) / 2 are there on average, and O `others`, for other models. So all of them together take
    Q ((Q + b) / 2 + O) / (m - r): small batches where few wait, quick ones where many wait for other models, or where
    as many come as small ones answer. A decoder takes all: who leaves makes place for others.

    Near to what can be answered at all that hangs on a few per cent, of which no rate and no profile is sure. So r is
    never taken to be more than `SURE` of it: the last of some twenty gaps often says so, and then one batch of all who
    wait, which is hardly quicker than smaller ones, would have them wait for each other. Where in truth more come,
    twice the quickest batch wait before long; then it begins (decision 78).
    """
    waiting = len(model.queue)
    if most == 1 or model.estimate.decoder is not None:
        return most
    answered = model.estimate.answered(most)
    best = answered.quickest
    if waiting >= CROWD * best:
        return best
    coming, least = min(model.queue.rate(now), SURE * answered.most), inf
    for batch, rate in answered.rates:
        there = 0.5 * (waiting + batch) + others
        if rate > coming and there < least * (rate - coming):
            least, best = there / (rate - coming), batch
    return best


def filled(model: ModelView, most: int, beside: int, inputs: int, now: float) -> int:
    """Return the most who can begin now, `beside` others, and all be in time though held up; 0 for nobody.

    Who has a priority is not passed over for others, so the first of these is in time as well.
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
    """Tell whether so many newcomers are enough to catch up with a decoder; anywhere else they do not gather.

    Part of what it costs to catch up is the same for few and for many. In groups of k, those who come at a rate r wait
    k / 2r each and share that delay d: least for k = sqrt(2 r d). No more can come in than leave.

    Where more wait than there are places, what counts is how many are answered in all. An empty place costs its share
    of what a step takes for few and for many alike, f: groups of k leave k / 2 places empty on average, and the work
    for each request, c / k + m f / (n - k / 2) with m steps and n places, is least for k = (n - k / 2) sqrt(2 c / m f).
    """
    if top.kind is not StageKind.DECODER:
        return True
    estimate, running, crowded = model.estimate, len(top.members), len(model.queue) > coming
    inputs = longest(model.queue.urgent(1 if crowded else coming))  # of a crowd, those of like length come
    once, twice = (estimate.between(n, top.stage, top.step, inputs) for n in (coming, 2 * coming))
    shared, unit = max(0.0, 2.0 * once - twice), estimate.unit(running, top.stage)
    if crowded:
        fixed = max(LEAST_FIXED * unit, 2.0 * unit - estimate.unit(2 * running, top.stage))
        return coming * coming * mean(model) * fixed >= 2.0 * shared * (running + 0.5 * coming) ** 2
    rate = min(model.queue.rate(now), running / (mean(model) * unit))
    return coming * coming >= 2.0 * rate * running * shared


def joining_pays(model: ModelView, top: SubBatch, newcomers: Sequence[Request]) -> bool:
    """Tell whether newcomers should catch up with a batch of their own model that is not at a decoder."""
    estimate = model.estimate
    running, coming = len(top.members), len(newcomers)
    inputs, outputs = longest(newcomers), mean(model)
    caught_up = estimate.between(coming, top.stage, top.step, inputs)
    rest = estimate.rest(running, top.stage, top.step, top.inputs, outputs)
    after = estimate.rest(running + coming, top.stage, top.step, max(inputs, top.inputs), outputs)
    whole = estimate.whole(coming, inputs, outputs)
    return (running + coming) * (caught_up + after) < running * rest + coming * (rest + whole)


def passing_pays(own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
    """Tell whether requests of another model should run before the running batch goes on: the shorter work first."""
    delay = model.estimate.whole(len(newcomers), longest(newcomers), mean(model))
    steps = min(request.steps for request in top.members.values()) or top.step
    rest = own.estimate.rest(len(top.members), top.stage, steps, top.inputs, mean(own))
    return len(top.members) * delay < len(newcomers) * rest


def pick(model: ModelView, count: int) -> list[Request]:
    """Return who begins next: the most urgent, and where inputs have lengths, those whose length is alike."""
    return model.queue.alike(count) if model.spec.kinds else model.queue.urgent(count)


def alone(model: ModelView) -> float:
    """Return the seconds that the most urgent of those who wait takes alone."""
    return model.estimate.whole(1, model.queue.urgent(1)[0].inputs)


def longest(requests: Iterable[Request]) -> int:
    """Return the steps of the longest input."""
    return max(request.inputs for request in requests)


def mean(model: ModelView) -> int:
    """Return how long an answer is on average: sums of latencies are about means, not about bounds."""
    return model.estimate.mean_outputs
