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
from operator import attrgetter

from latebind.batching.lazy_plus import LazyPlus
from latebind.batching.request import Request
from latebind.batching.table import BatchTable, StagePools
from latebind.batching.view import Decision, GoOn, ModelView, Shed, Wait, WorkView, launch

DEADLINE = attrgetter("deadline")
NEARLY = 0.7  # of the best chance that anybody has to be in time
HELD = 1.5  # times what a batch takes by itself: others go ahead of it now and then
QUICK = 0.75  # of what a stage takes on average: hardly any is quicker, and who has begun has cost something
MARGIN = 1.5  # times what somebody takes alone: so early before it is too late they hurry
BETTER = 1.02  # times as many answers a second are needed to leave who has begun for who has not


@dataclass(frozen=True, slots=True)
class Choice:
    """Requests that may go on together, the most urgent first, from before `stage`; `place` -1: they wait to begin."""

    model: ModelView
    requests: Sequence[Request]
    stage: int
    place: int
    is_all: bool = False  # of those who rest at its place

    @property
    def rate(self) -> float:
        """The answers a second to be hoped for."""
        return self.model.estimate.exits.best(self.stage, len(self.requests)).rate

    @property
    def seconds(self) -> float:
        """The seconds until somebody of it may leave."""
        return self.model.estimate.exits.next(self.stage, len(self.requests)).seconds

    @property
    def alone(self) -> float:
        """The seconds that one of them takes by itself to the end."""
        return self.model.estimate.rest(1, self.stage, 0, 1)

    def decision(self) -> Decision:
        """Return what makes it so."""
        if self.place < 0:
            return launch(self.model, self.requests)
        return GoOn(self.place, () if self.is_all else tuple([request.id for request in self.requests]))


class Late(LazyPlus):
    """The joint policy."""

    counts_exits = True
    widens = True

    def table(self, granularity: int) -> BatchTable:
        """Return empty pools."""
        del granularity
        return StagePools()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, go on, shed, or leave who waits to workers that fit better."""
        if view.models.decode or not view.models.exit:
            return super().decide(view, now)
        return self._most_answers(view, now)

    def _share(self, view: WorkView, model: ModelView) -> int:
        """Return how many a worker may begin where others are idle too: its part, or all that it fits best."""
        if len(view.crew) < 2 or view.entries:
            return super()._share(view, model)
        waiting = len(model.queue)
        idle = [one for one in view.crew if not one.entries and one is not view]
        if waiting < view.granularity and any(one.granularity < view.granularity for one in idle):
            return 0
        alike = 1 + sum(one.granularity == view.granularity for one in idle)
        return min(super()._share(view, model), -(-waiting // alike))

    def _most_answers(self, view: WorkView, now: float) -> Decision:
        choices = []
        waiting = view.models.requests + view.resting
        for place, entry in enumerate(view.entries):
            model = view.model_of(entry)
            members = sorted(entry.members.values(), key=DEADLINE)
            if self._config.shed:
                earliest = now + QUICK * model.estimate.exits.next(entry.stage, 1).seconds
                if members[0].deadline < earliest:
                    return Shed(model.name, tuple([r.id for r in members if r.deadline < earliest]))
            most = min(super(LazyPlus, self).batch_limit(model), view.granularity)
            count = together(model, entry.stage, len(members), waiting, most, now)
            choice = Choice(model, members[:count], entry.stage, place, is_all=count == len(members))
            if len(members) >= most:
                return choice.decision()
            choices.append(choice)
        for model in view.models.waiting:
            most = self._share(view, model)
            if most:
                count = together(model, 0, len(model.queue), waiting, most, now)
                choices.append(Choice(model, self._in_time(model, count, now), 0, -1))
        return self._best(choices, now).decision() if choices else Wait()

    def _in_time(self, model: ModelView, count: int, now: float) -> Sequence[Request]:
        """Return the most urgent of those that have nearly as good a chance to be in time as anybody who waits."""
        if not self._config.shed:
            return model.queue.urgent(count)
        chances = model.estimate.exits.chances(count)
        best = chances.within((model.queue.latest - now) / HELD)
        due = now + HELD * chances.least_slack(NEARLY * best)
        return model.queue.urgent(count, due=due) or model.queue.urgent(1)

    def _best(self, choices: Sequence[Choice], now: float) -> Choice:
        """Return the choice with the most answers a second, or one that has to hurry where that costs it nothing."""
        if len(choices) == 1:
            return choices[0]
        best = max(choices, key=lambda choice: choice.rate * (BETTER if choice.place >= 0 else 1.0))
        urgent = [choice for choice in choices if choice is not best and hurries(choice, best, now)]
        return min(urgent, key=lambda choice: choice.requests[0].deadline) if urgent else best


def hurries(choice: Choice, best: Choice, now: float) -> bool:
    """Tell whether somebody would be late after the best choice, and in time before it without making that late."""
    last, alone, then = choice.requests[0].deadline, choice.alone, best.seconds
    if now + alone > last or now + then + MARGIN * alone <= last:
        return False
    return best.requests[0].deadline >= now + alone + then


def together(model: ModelView, stage: int, count: int, waiting: int, most: int, now: float) -> int:
    """Return how many of the `count` at a stage go on together, at most `most`; so many are `waiting` anywhere.

    In batches of b, which take T(b) until somebody may leave, n requests wait for (n + b) / 2 b of them each, and all
    others for n / b; and those who come at a rate r meanwhile. With m requests answered a second where all stages run
    the batches that are best for it, and a share S of all requests running this one, the worker is busy for a share
    rho(b) = r (1 / m + S (T(b) / b - min T(b) / b)). So it is the b for which T(b) / b ((n + b) / 2 + others) /
    (1 - rho(b)) is least, and that with the least T(b) / b where rho is never below 1.
    """
    limit = min(most, count)
    if limit == 1:
        return 1
    exits, coming, others = model.estimate.exits, model.queue.rate(now), waiting - count
    whole, here = exits.shares(stage, most), exits.shares(stage, limit)
    busy, share = coming / whole.answered, coming * exits.alive[stage]
    least, best = inf, here.enough
    for size, cost in here.by_size:
        free = 1.0 - busy - share * (cost - whole.least)
        if free > 0.0 and cost * (0.5 * (count + size) + others) < least * free:
            least, best = cost * (0.5 * (count + size) + others) / free, size
    return best
