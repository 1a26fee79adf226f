"""`late`, the default policy: elastic over workers, lazy at stage boundaries, and aware of learned caches.

Without learned caches, or where a model has a decoder, it is `lazy+` on each worker. With them, requests that have not
left at a stage boundary rest there. At each boundary where a request could have left or has arrived, the worker runs
what is expected to give the most answers per second, in batches as large as the measured curve makes worthwhile. So new
requests, whose first lookup is cheap, run before the misses of others go deep, and misses go on together only where
that is cheaper than one by one. Deadlines come first: a request that would be late otherwise goes ahead where that
makes no other one late, and requests that cannot be in time any more are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from latebind.batching.decisions import Decision, GoOn, Shed, Wait
from latebind.batching.lazy_plus import LazyPlus
from latebind.batching.policy import ModelView, WorkView, launch
from latebind.batching.queue import Request
from latebind.batching.table import BatchTable, SubBatch

NEARLY = 0.7  # share of the best chance of all waiting requests to be in time
HELD = 1.5  # times the seconds of a batch by itself, because others go ahead of it now and then
QUICK = 0.75  # share of a stage's mean seconds; hardly any run is quicker, and dropping a started request wastes work
MARGIN = 1.5  # times the seconds of a request alone: how early before it is too late it becomes urgent
BETTER = 1.02  # times as many answers per second are needed to start new requests before started ones go on


@dataclass(slots=True)
class Choice:
    """`count` requests that may go on together from before `stage`; the earliest deadline is `due`.

    They rest at `place` of the entries; -1: they wait to start. `requests` names them where they are not all of these.
    """

    model: ModelView
    stage: int
    place: int
    count: int
    due: float
    requests: Sequence[Request] = ()

    @property
    def rate(self) -> float:
        """The expected answers per second."""
        return self.model.estimate.best_rate(self.stage, self.count)

    @property
    def seconds(self) -> float:
        """The seconds until one of them may leave."""
        return self.model.estimate.until_exit(self.stage, self.count)

    @property
    def alone(self) -> float:
        """The seconds that one of them takes by itself to the end."""
        return self.model.estimate.until_end(self.stage, 1)

    def decision(self) -> Decision:
        """Return the decision that carries out this choice."""
        if self.place < 0:
            return launch(self.model, self.requests)
        return GoOn(self.place, tuple([request.id for request in self.requests]) if self.requests else ())


class Late(LazyPlus):
    """The default policy: decides over batches, workers, learned caches and deadlines together."""

    counts_exits = True

    def table(self) -> BatchTable:
        """Return an empty table, of which any requests may go on."""
        return BatchTable()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch, go on, shed, or leave waiting requests to workers that fit better."""
        if view.models.decode or not view.models.exit:
            return super().decide(view, now)
        return self._most_answers(view, now)

    def _share(self, view: WorkView, model: ModelView, now: float) -> int:
        """Return how many requests a worker may start: where others are idle too, its share of the waiting ones.

        It is 0 where a smaller worker that is idle fits better.
        """
        most = super()._share(view, model, now)
        if len(view.crew) < 2 or view.entries:
            return most
        waiting = len(model.queue)
        idle = [one for one in view.crew if not one.entries and one is not view]
        if waiting < view.granularity and any(one.granularity < view.granularity for one in idle):
            return 0
        alike = 1 + sum(one.granularity == view.granularity for one in idle)
        return min(most, -(-waiting // alike))

    def _most_answers(self, view: WorkView, now: float) -> Decision:
        choices, sheds = [], self._config.shed
        waiting = view.models.requests + view.resting
        lone = len(view.entries) == 1 and not view.models.waiting
        for place, entry in enumerate(view.entries):
            model, resting, due = view.models.named(entry.spec.name), len(entry.members), entry.due
            most = min(self.most(model), view.granularity)
            count = together(model, entry.stage, resting, waiting, most, now)
            in_time = not sheds or due >= now + model.estimate.until_exit(entry.stage, count)
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
            most = self._share(view, model, now)
            if most:
                requests = self._in_time(model, together(model, 0, len(model.queue), waiting, most, now), now)
                choices.append(Choice(model, 0, -1, len(requests), earliest(requests), requests))
        return best_of(choices, now).decision() if choices else Wait()

    def _in_time(self, model: ModelView, count: int, now: float) -> Sequence[Request]:
        """Return the most urgent of the requests whose chance to be in time is nearly the best of all that wait."""
        if not self._config.shed or model.queue.soonest >= now + HELD * model.estimate.until_end(0, count):
            return model.queue.urgent(count)
        count = fitting(model, 0, count, now, HELD, model.queue.due_last)
        chances = model.estimate.chances(count)
        best = chances.within((model.queue.latest - now) / HELD)
        due = now + HELD * chances.least_slack(NEARLY * best)
        return model.queue.urgent(count, due=due) or model.queue.urgent(1)


def best_of(choices: Sequence[Choice], now: float) -> Choice:
    """Return the choice with the most answers per second, or an urgent one where that makes the best one not late."""
    if len(choices) == 1:
        return choices[0]
    best = max(choices, key=lambda choice: choice.rate * (BETTER if choice.place >= 0 else 1.0))
    urgent = [choice for choice in choices if choice is not best and hurries(choice, best, now)]
    return min(urgent, key=attrgetter("due")) if urgent else best


def earliest(requests: Sequence[Request]) -> float:
    """Return the earliest deadline of requests in the order in which they start: by priority, then by deadline."""
    first = requests[0]
    return min([request.deadline for request in requests]) if first.priority else first.deadline


def by_deadline(entry: SubBatch) -> list[Request]:
    """Return the members of a sub-batch, the earliest deadline first."""
    return sorted(entry.members.values(), key=attrgetter("deadline"))


def too_late(choice: Choice, entry: SubBatch, now: float) -> tuple[int, ...]:
    """Return the resting requests of a choice that cannot be in time any more."""
    soonest = now + QUICK * choice.model.estimate.until_exit(choice.stage, 1)
    if choice.due >= soonest:
        return ()
    return tuple([request.id for request in by_deadline(entry) if request.deadline < soonest])


def take_in_time(choice: Choice, entry: SubBatch, now: float) -> None:
    """Reduce a choice to the most requests that can be in time together; the others are passed over."""
    model, stage, members = choice.model, choice.stage, by_deadline(entry)
    count = fitting(model, stage, choice.count, now, 1.0, lambda size: members[-size].deadline)
    due = now + model.estimate.until_exit(stage, count)
    chosen = [request for request in members if request.deadline >= due][:count] or members[:1]
    choice.count, choice.due = len(chosen), chosen[0].deadline
    if len(chosen) < len(members):
        choice.requests = chosen


def fitting(model: ModelView, stage: int, most: int, now: float, held: float, due_last: Callable[[int], float]) -> int:
    """Return the most requests, at least one, that can be in time together, with batches delayed by the factor `held`.

    `due_last(n)` is the earliest of the n latest deadlines. A request counts as in time if it is at the next exit.
    """
    least = 1
    while least < most:
        middle = (least + most + 1) // 2
        if due_last(middle) >= now + held * model.estimate.until_exit(stage, middle):
            least = middle
        else:
            most = middle - 1
    return least


def hurries(choice: Choice, best: Choice, now: float) -> bool:
    """Return whether a choice would be late after the best one, and in time before it without making that late."""
    last, alone, then = choice.due, choice.alone, best.seconds
    if now + alone > last or now + then + MARGIN * alone <= last:
        return False
    return best.due >= now + alone + then


def together(model: ModelView, stage: int, count: int, waiting: int, most: int, now: float) -> int:
    """Return how many of the `count` requests at a stage go on together, at most `most`; `waiting` wait anywhere.

    In batches of b, which take T(b) until a member may leave, each of n requests waits for (n + b) / 2b batches, and
    each other request for n / b; meanwhile requests arrive at a rate r. If m requests are answered per second with all
    stages in their best batch size, and the share S of all requests runs this stage, the worker is busy for a share
    rho(b) = r (1 / m + S (T(b) / b - min T(b) / b)). So the result is the b for which T(b) / b ((n + b) / 2 + others) /
    (1 - rho(b)) is least; where rho is never below 1, the b with nearly the least T(b) / b.

    r is not bounded as in `quickest`. With a bound of 0.94 m, batches stay small where more come than can be answered,
    and ResNet-56 has 2 to 4 % fewer in time within twice what a request takes alone.
    """
    limit = min(most, count)
    if limit == 1:
        return 1
    estimate, coming, others = model.estimate, model.queue.rate(now), waiting - count
    shares = estimate.shares(stage, limit, most)
    busy, share = coming / shares.answered, coming * estimate.alive[stage]
    least, best = inf, shares.enough
    for size, cost, dearer in shares.by_size:
        free = 1.0 - busy - share * dearer
        if free > 0.0:
            score = cost * (0.5 * (count + size) + others)
            if score < least * free:
                least, best = score / free, size
    return best
