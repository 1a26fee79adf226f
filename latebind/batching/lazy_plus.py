"""`lazy+`: work-conserving, without a window; newcomers are let past only where that shortens the sum of waiting.

A worker without work takes all that wait, the most urgent first. At a boundary newcomers may begin at once if by the
profile the sum of all latencies falls, if everybody keeps in time (`slack.Profiled`), and if nobody is held up for
longer than `BOUND` times what it takes alone. One group at a time catches up.
"""

from collections.abc import Iterable, Sequence

from latebind.batching.base import Stacked
from latebind.batching.request import Request
from latebind.batching.slack import Profiled
from latebind.batching.table import SubBatch
from latebind.batching.view import Decision, GoOn, ModelView, Shed, WorkView, launch
from latebind.domain.config import PolicyConfig
from latebind.domain.model import StageKind

BOUND = 1.0  # of what a request takes alone, by which others may hold it up


class LazyPlus(Stacked):
    """Decides by deadlines and measured costs alone."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self._slack = Profiled()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, shed or go on."""
        if view.entries:
            return self._at_a_boundary(view, now)
        some = [model for model in view.models if model.queue]
        model = min(some, key=lambda model: model.queue.urgent(1)[0].deadline)
        batch = model.queue.urgent(self.batch_limit(model))
        return self._shed(model, batch, len(batch), now) or launch(model, batch)

    def _shed(self, model: ModelView, newcomers: Sequence[Request], together: int, now: float) -> Shed | None:
        """Return who cannot be in time in a batch of so many `together` that would start now, if anybody.

        Where more wait than can begin, places are for those who will be in time even with a long answer and held up for
        as long as may be.
        """
        if not self._config.shed:
            return None
        inputs = longest(newcomers)
        if len(model.queue) > len(newcomers):
            ends = now + (1.0 + BOUND) * model.estimate.whole(together, inputs)
        else:
            ends = now + model.estimate.whole(together, inputs, mean(model))
        lost = [request.id for request in newcomers if request.deadline < ends]
        return Shed(model.name, tuple(lost)) if lost else None

    def _at_a_boundary(self, view: WorkView, now: float) -> Decision:
        top = view.entries[-1]
        if len(view.entries) > 1:
            return GoOn()
        own = view.model_of(top)
        for model in view.models:
            if not model.queue:
                continue
            room = self.batch_limit(model) - view.begun(model)
            if room <= 0:
                continue
            newcomers = model.queue.urgent(room)
            shed = self._shed(model, newcomers, len(newcomers) + view.begun(model), now)
            if shed is not None:
                return shed
            pays = (
                self._joining_pays(own, top, newcomers, now)
                if model is own
                else passing_pays(own, top, model, newcomers)
            )
            if not pays or self._held_up(own, top, model, newcomers):
                continue
            if self._slack.most(view, model, newcomers, now) == len(newcomers):
                return launch(model, newcomers)
        return GoOn()

    def _joining_pays(self, model: ModelView, top: SubBatch, newcomers: Sequence[Request], now: float) -> bool:
        """Tell whether newcomers should catch up with the running batch of their own model."""
        estimate = model.estimate
        running, coming = len(top.members), len(newcomers)
        inputs = longest(newcomers)
        caught_up = estimate.between(coming, top.stage, top.step, inputs)
        if top.kind is StageKind.DECODER:
            # Part of what it costs to catch up is the same for few and for many, so let them gather. In groups of k, those
            # who come at a rate r wait k / 2r each and share that delay d: least for k = sqrt(2 r d). No more can come in
            # than leave.
            twice = estimate.between(2 * coming, top.stage, top.step, inputs)
            shared = max(0.0, 2.0 * caught_up - twice)
            leaving = running / (mean(model) * estimate.unit(running, top.stage))
            rate = leaving if len(model.queue) > coming else min(model.queue.rate(now), leaving)
            return coming * coming >= 2.0 * rate * running * shared
        together = max(inputs, top.inputs)
        outputs = mean(model)
        rest = estimate.rest(running, top.stage, top.step, top.inputs, outputs)
        after = estimate.rest(running + coming, top.stage, top.step, together, outputs)
        whole = estimate.whole(coming, inputs, outputs)
        return (running + coming) * (caught_up + after) < running * rest + coming * (rest + whole)

    def _held_up(self, own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
        """Tell whether someone would have been held up for too long."""
        inputs = longest(newcomers)
        if model is own:
            delay = own.estimate.between(len(newcomers), top.stage, top.step, inputs)
        else:
            delay = model.estimate.whole(len(newcomers), inputs, mean(model))
        most = BOUND * own.estimate.whole(len(top.members) + len(newcomers), top.inputs) - delay
        return any([request.delayed > most for request in top.members.values()])


def passing_pays(own: ModelView, top: SubBatch, model: ModelView, newcomers: Sequence[Request]) -> bool:
    """Tell whether requests of another model should run before the running batch goes on: the shorter work first."""
    delay = model.estimate.whole(len(newcomers), longest(newcomers), mean(model))
    steps = min(request.steps for request in top.members.values()) or top.step
    rest = own.estimate.rest(len(top.members), top.stage, steps, top.inputs, mean(own))
    return len(top.members) * delay < len(newcomers) * rest


def longest(requests: Iterable[Request]) -> int:
    """Return the steps of the longest input."""
    return max(request.inputs for request in requests)


def mean(model: ModelView) -> int:
    """Return how long an answer is on average: sums of latencies are about means, not about bounds."""
    return model.estimate.mean_outputs
