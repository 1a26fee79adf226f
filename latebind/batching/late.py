"""`late`: everything at once. Elastic over workers, lazy at boundaries, and by what learned caches let one hope for.

Without learned caches, or where a model writes sequences, it is `lazy+` on each worker. With them, whoever has not left
at a boundary rests there, and at each boundary the worker does what is expected to give the most answers a second, as
many together as the measured curve makes worth it: newcomers whose first lookup is cheap are asked before the misses
of others go deep, and misses go on together only where that is cheaper than one by one. Deadlines come first: who would
be late otherwise goes ahead where that costs nobody else an answer, and who cannot be in time any more is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from latebind.batching.exits import Prospect
from latebind.batching.lazy_plus import LazyPlus
from latebind.batching.request import Request
from latebind.batching.table import BatchTable, StagePools
from latebind.batching.view import Decision, GoOn, ModelView, Shed, Wait, WorkView, launch

NEARLY = 0.7  # of the best chance that anybody has to be in time
HELD = 1.5  # times what a batch takes by itself: others go ahead of it now and then
BETTER = 1.02  # times as many answers a second are needed to leave who has begun for who has not


@dataclass(frozen=True, slots=True)
class Choice:
    """Requests that may go on together, the most urgent first, from before `stage`; `place` -1: they wait to begin."""

    model: ModelView
    requests: Sequence[Request]
    stage: int
    place: int
    prospect: Prospect

    @property
    def rate(self) -> float:
        """The answers a second to be hoped for."""
        return self.prospect.rate(self.model.estimate.pace)

    @property
    def next_seconds(self) -> float:
        """Return the seconds until somebody of it may leave."""
        return self.model.estimate.exits.next(self.stage, len(self.requests)).seconds(self.model.estimate.pace)

    @property
    def alone(self) -> float:
        """The seconds that one of them takes by itself to the end."""
        return self.model.estimate.rest(1, self.stage, 0, 1)

    def decision(self) -> Decision:
        """Return what makes it so."""
        if self.place < 0:
            return launch(self.model, self.requests)
        return GoOn(self.place, tuple([request.id for request in self.requests]))


class Late(LazyPlus):
    """The joint policy."""

    counts_exits = True

    def table(self, granularity: int) -> BatchTable:
        """Return empty pools."""
        del granularity
        return StagePools()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, go on, shed, or leave who waits to workers that fit better."""
        estimates = [model.estimate for model in view.models]
        if any(e.decoder is not None for e in estimates) or not any(e.exits.some for e in estimates):
            return super().decide(view, now)
        return self._most_answers(view, now)

    def _share(self, view: WorkView, model: ModelView) -> int:
        """Return how many a worker may begin where others are idle too: its part, or all that it fits best."""
        waiting = len(model.queue)
        idle = [one for one in view.crew if not one.entries and one is not view]
        if waiting < view.granularity and any(one.granularity < view.granularity for one in idle):
            return 0
        alike = 1 + sum(one.granularity == view.granularity for one in idle)
        return min(super()._share(view, model), -(-waiting // alike))

    def _most_answers(self, view: WorkView, now: float) -> Decision:
        resting = [self._resting(view, place, now) for place in range(len(view.entries))]
        for choice in resting:
            if isinstance(choice, Shed):
                return choice
        choices = [choice for choice in resting if isinstance(choice, Choice)]
        for choice in choices:
            if len(view.entries[choice.place].members) >= self._limit(view, choice.model):
                return choice.decision()
        choices += [self._waiting(view, model, now) for model in view.models if model.queue and self._room(view, model)]
        if not choices:
            return Wait()
        best = max(choices, key=lambda choice: choice.rate * (BETTER if choice.place >= 0 else 1.0))
        urgent = [one for one in choices if one is not best and self._hurries(one, best, now)]
        if urgent:
            best = min(urgent, key=lambda choice: choice.requests[0].deadline)
        return best.decision()

    def _in_time(self, model: ModelView, count: int, now: float) -> Sequence[Request]:
        """Return the most urgent of those that have nearly as good a chance to be in time as anybody who waits."""
        chances = model.estimate.exits.chances(count, model.estimate.pace)
        waiting = model.queue.urgent(len(model.queue))
        best = chances.within((waiting[-1].deadline - now) / HELD)
        enough = HELD * chances.least_slack(NEARLY * best)
        chosen = []
        for request in waiting:
            if request.deadline - now >= enough:
                chosen.append(request)
                if len(chosen) == count:
                    break
        return chosen or waiting[:1]

    def _limit(self, view: WorkView, model: ModelView) -> int:
        return min(super(LazyPlus, self).batch_limit(model), view.granularity)

    def _room(self, view: WorkView, model: ModelView) -> bool:
        return self._share(view, model) > 0 or bool(view.entries)

    def _resting(self, view: WorkView, place: int, now: float) -> Choice | Shed:
        """Return who of a pool goes on best, or who of it cannot be in time."""
        entry = view.entries[place]
        model = view.model_of(entry)
        members = sorted(entry.members.values(), key=lambda request: request.deadline)
        exits, pace = model.estimate.exits, model.estimate.pace
        if self._config.shed:
            earliest = now + exits.next(entry.stage, 1).seconds(pace)
            lost = [request.id for request in members if request.deadline < earliest]
            if lost:
                return Shed(model.name, tuple(lost))
        others = sum([len(model.queue) for model in view.models]) + view.resting - len(members)
        count = together(model, entry.stage, len(members), others, self._limit(view, model), now)
        return Choice(model, members[:count], entry.stage, place, exits.best(entry.stage, count))

    def _waiting(self, view: WorkView, model: ModelView, now: float) -> Choice:
        """Return who of those that wait begins best."""
        most = min(self._limit(view, model), max(1, self._share(view, model)))
        others = sum([len(other.queue) for other in view.models if other is not model]) + view.resting
        count = together(model, 0, len(model.queue), others, most, now)
        exits = model.estimate.exits
        requests = self._in_time(model, count, now) if self._config.shed else model.queue.urgent(count)
        return Choice(model, requests, 0, -1, exits.best(0, len(requests)))

    def _hurries(self, one: Choice, best: Choice, now: float) -> bool:
        """Tell whether somebody would be late after the best choice, and in time before it without making it late."""
        last = one.requests[0].deadline
        alone = one.alone
        if now + alone > last or now + best.next_seconds + alone <= last:
            return False
        return all(request.deadline >= now + alone + best.next_seconds for request in best.requests)


def together(model: ModelView, stage: int, waiting: int, others: int, most: int, now: float) -> int:
    """Return how many of those who wait at a stage go on together, at most `most`.

    In batches of b, which take T(b) until somebody may leave, n requests wait for (n + b) / 2 b of them each, and all
    others for n / b; and those who come at a rate r meanwhile. With m requests answered a second where all stages run
    the batches that are best for it, and a share S of all requests running this one, the worker is busy for a share
    rho(b) = r (1 / m + S (T(b) / b - min T(b) / b)). So it is the b for which T(b) / b ((n + b) / 2 + others) /
    (1 - rho(b)) is least, and that with the least T(b) / b where rho is never below 1.
    """
    limit = min(most, waiting)
    if limit == 1:
        return 1
    exits, pace, coming = model.estimate.exits, model.estimate.pace, model.queue.rate(now)
    fewest = min([cost for _, cost in exits.each(stage, most, pace)])
    answered = exits.quickest(most, pace)
    costs = exits.each(stage, limit, pace)
    enough = BETTER * min([cost for _, cost in costs])
    least, best = inf, next(size for size, cost in costs if cost <= enough)
    for size, cost in costs:
        free = 1.0 - coming * (1.0 / answered + exits.alive[stage] * (cost - fewest))
        if free > 0.0 and cost * (0.5 * (waiting + size) + others) < least * free:
            least, best = cost * (0.5 * (waiting + size) + others) / free, size
    return best
