"""`late`: everything at once. Elastic over workers, lazy at boundaries, and by what learned caches let one hope for.

Without learned caches, or where a model writes sequences, it is `lazy+` on each worker. With them, whoever has not left
at a boundary rests there, and at each boundary where somebody could have left or has come the worker does what is
expected to give the most answers a second, as many together as the measured curve makes worth it: newcomers whose first
lookup is cheap are asked before the misses of others go deep, and misses go on together only where that is cheaper than
one by one. Deadlines come first: who would be late otherwise goes ahead where that costs nobody else an answer, and who
cannot be in time any more is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from latebind.batching.decisions import Decision, GoOn, Shed, Wait
from latebind.batching.lazy_plus import LazyPlus
from latebind.batching.request import Request
from latebind.batching.table import BatchTable, StagePools, SubBatch
from latebind.batching.view import ModelView, WorkView, launch

NEARLY = 0.7  # of the best chance that anybody has to be in time
HELD = 1.5  # times what a batch takes by itself: others go ahead of it now and then
QUICK = 0.75  # of what a stage takes on average: hardly any is quicker, and who has begun has cost something
MARGIN = 1.5  # times what somebody takes alone: so early before it is too late they hurry
BETTER = 1.02  # times as many answers a second are needed to leave who has begun for who has not


@dataclass(slots=True)
class Choice:
    """So many who may go on together from before `stage`, of whom the first is `due`.

    They are those who rest at `place`; -1: they wait to begin. Where not all of these are meant, they are `requests`.
    """

    model: ModelView
    stage: int
    place: int
    count: int
    due: float
    requests: Sequence[Request] = ()

    @property
    def rate(self) -> float:
        """The answers a second to be hoped for."""
        return self.model.estimate.exits.best(self.stage, self.count).rate

    @property
    def seconds(self) -> float:
        """The seconds until somebody of it may leave."""
        return self.model.estimate.exits.next(self.stage, self.count).seconds

    @property
    def alone(self) -> float:
        """The seconds that one of them takes by itself to the end."""
        return self.model.estimate.exits.all(self.stage, 1).seconds

    def decision(self) -> Decision:
        """Return what makes it so."""
        if self.place < 0:
            return launch(self.model, self.requests)
        return GoOn(self.place, tuple([request.id for request in self.requests]) if self.requests else ())


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
        choices, sheds = [], self._config.shed
        waiting = view.models.requests + view.resting
        lone = len(view.entries) == 1 and not view.models.waiting
        for place, entry in enumerate(view.entries):
            model, resting, due = view.models.named(entry.spec.name), len(entry.members), entry.due
            most = min(self.most(model), view.granularity)
            count = together(model, entry.stage, resting, waiting, most, now)
            in_time = not sheds or due >= now + model.estimate.exits.next(entry.stage, count).seconds
            if count == resting and in_time and (lone or resting >= most):
                return GoOn(place)
            choice = Choice(model, entry.stage, place, count, due)
            if not in_time:
                late = too_late(choice, entry, now)
                if late:
                    return Shed(model.name, late)
                take_in_time(choice, entry, now)
            elif count < resting:
                choice.requests = by_deadline(entry)[:count]
            if resting >= most:
                return choice.decision()
            choices.append(choice)
        for model in view.models.waiting:
            most = self._share(view, model)
            if most:
                requests = self._in_time(model, together(model, 0, len(model.queue), waiting, most, now), now)
                choices.append(Choice(model, 0, -1, len(requests), requests[0].deadline, requests))
        return best_of(choices, now).decision() if choices else Wait()

    def _in_time(self, model: ModelView, count: int, now: float) -> Sequence[Request]:
        """Return the most urgent of those that have nearly as good a chance to be in time as anybody who waits."""
        if not self._config.shed or model.queue.soonest >= now + HELD * model.estimate.exits.all(0, count).seconds:
            return model.queue.urgent(count)
        count = fitting(model, 0, count, now, HELD, model.queue.due_last)
        chances = model.estimate.exits.chances(count)
        best = chances.within((model.queue.latest - now) / HELD)
        due = now + HELD * chances.least_slack(NEARLY * best)
        return model.queue.urgent(count, due=due) or model.queue.urgent(1)


def best_of(choices: Sequence[Choice], now: float) -> Choice:
    """Return the choice with the most answers a second, or one that has to hurry where that costs it nothing."""
    if len(choices) == 1:
        return choices[0]
    best = max(choices, key=lambda choice: choice.rate * (BETTER if choice.place >= 0 else 1.0))
    urgent = [choice for choice in choices if choice is not best and hurries(choice, best, now)]
    return min(urgent, key=attrgetter("due")) if urgent else best


def by_deadline(entry: SubBatch) -> list[Request]:
    """Return who is in a sub-batch, the most urgent first."""
    return sorted(entry.members.values(), key=attrgetter("deadline"))


def too_late(choice: Choice, entry: SubBatch, now: float) -> tuple[int, ...]:
    """Return those who rest there and cannot be in time any more."""
    earliest = now + QUICK * choice.model.estimate.exits.next(choice.stage, 1).seconds
    if choice.due >= earliest:
        return ()
    return tuple([request.id for request in by_deadline(entry) if request.deadline < earliest])


def take_in_time(choice: Choice, entry: SubBatch, now: float) -> None:
    """Have the most go on who may be in time together, where not all may; the others are passed over."""
    model, stage, members = choice.model, choice.stage, by_deadline(entry)
    count = fitting(model, stage, choice.count, now, 1.0, lambda size: members[-size].deadline)
    due = now + model.estimate.exits.next(stage, count).seconds
    chosen = [request for request in members if request.deadline >= due][:count] or members[:1]
    choice.count, choice.due = len(chosen), chosen[0].deadline
    if len(chosen) < len(members):
        choice.requests = chosen


def fitting(model: ModelView, stage: int, most: int, now: float, held: float, due_last: Callable[[int], float]) -> int:
    """Return the most, at least one, who may all be in time together, if that takes `held` times what it does alone.

    So many are due at `due_last` or later. In time is who may leave at the next place after the stage.
    """
    least = 1
    while least < most:
        middle = (least + most + 1) // 2
        if due_last(middle) >= now + held * model.estimate.exits.next(stage, middle).seconds:
            least = middle
        else:
            most = middle - 1
    return least


def hurries(choice: Choice, best: Choice, now: float) -> bool:
    """Tell whether somebody would be late after the best choice, and in time before it without making that late."""
    last, alone, then = choice.due, choice.alone, best.seconds
    if now + alone > last or now + then + MARGIN * alone <= last:
        return False
    return best.due >= now + alone + then


def together(model: ModelView, stage: int, count: int, waiting: int, most: int, now: float) -> int:
    """Return how many of the `count` at a stage go on together, at most `most`; so many are `waiting` anywhere.

    In batches of b, which take T(b) until somebody may leave, n requests wait for (n + b) / 2 b of them each, and all
    others for n / b; and those who come at a rate r meanwhile. With m requests answered a second where all stages run
    the batches that are best for it, and a share S of all requests running this one, the worker is busy for a share
    rho(b) = r (1 / m + S (T(b) / b - min T(b) / b)). So it is the b for which T(b) / b ((n + b) / 2 + others) /
    (1 - rho(b)) is least, and that with the least T(b) / b where rho is never below 1.

    r is not bounded as in `quickest`. With a bound of 0.94 m, batches stay small where more come than can be answered,
    and ResNet-56 has 2 to 4 % fewer in time within twice what a request takes alone.
    """
    limit = min(most, count)
    if limit == 1:
        return 1
    exits, coming, others = model.estimate.exits, model.queue.rate(now), waiting - count
    shares = exits.shares(stage, limit, most)
    busy, share = coming / shares.answered, coming * exits.alive[stage]
    least, best = inf, shares.enough
    for size, cost, dearer in shares.by_size:
        free = 1.0 - busy - share * dearer
        if free > 0.0:
            score = cost * (0.5 * (count + size) + others)
            if score < least * free:
                least, best = score / free, size
    return best
