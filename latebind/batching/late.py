"""`late`, the default policy, and `lazy+`, its special case without early exits. Both decide by deadlines and costs.

`lazy+` is work-conserving, without a window. An idle worker starts the most urgent waiting requests, as many as clear
the queue with the least waiting in all. At a stage boundary, new requests may start at once if by the profile the sum
of all latencies falls, all requests stay in time, and none is delayed for too long. One group at a time catches up.

`late` is elastic over workers too, and aware of learned caches. With them, requests that have not left at a stage
boundary rest there. At each boundary where a request could have left or has arrived, the worker runs what is expected
to give the most answers per second, in batches as large as the measured curve makes worthwhile. So new requests, whose
first lookup is cheap, run before the misses of others go deep, and misses go on together only where that is cheaper
than one by one. Of those that rest, only as many go on as can be in time together: that is worth 6 to 8 % of the
answers in time at 140 % of the capacity. Where no model has caches it is `lazy+`, also for requests that differ in
length: letting them rest at boundaries answered 1.6 % fewer in time at the capacity, and took 7 % longer (CLINC150).
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter

from mypy_extensions import mypyc_attr

from latebind.batching.decisions import Decision, GoOn, Launch, Shed, Wait
from latebind.batching.lengths import Picked, Pool
from latebind.batching.policy import Stacked
from latebind.batching.requests import Lane, Order, Request
from latebind.batching.workers import BatchTable, SubBatch, Worker, joined_length
from latebind.domain.costs import batch_length
from latebind.domain.model import StageKind

# In units of the batch's whole running time:
BOUND = 1.0  # the longest delay of a request by new requests that catch up with it
BOUND_PASSING = 0.25  # the longest delay by requests of another model, which never join its batch
HELD_ONCE = 0.25  # the usual delay of a request
PATIENCE = 0.6  # after requests of another model have waited for this, no request joins the batch any more

BELIEVED = 0.9  # of the highest throughput: no arrival rate above it is believed
ALIKE = 0.9  # of the most tokens a second counts as equally many: costs are not known better
LEAST_FIXED = 0.1  # the least share of a step's time that does not depend on the batch size


@mypyc_attr(allow_interpreted_subclasses=True)
class LazyPlus(Stacked):
    """Decides only by deadlines and measured costs."""

    order = Order.DEADLINE

    def batch_limit(self, model: Lane) -> int:
        """Return the largest batch that makes requests faster, at most the configured one."""
        return model.most if model.estimate.by_length else model.estimate.worth_batching(model.most)

    def decide(self, view: Worker, now: float) -> Decision:
        """Launch, shed or go on."""
        if view.entries:
            return self._at_a_boundary(view, now)
        model = min(view.models.waiting, key=lambda model: model.queue.turn)
        most = self._share(view, model)
        if not most:
            return Wait()
        if model.queue.groups is not None:
            return model.launch(self._pick(view, model, most, now))
        most = quickest(model, most, now, view.models.requests - len(model.queue))
        batch = self._in_time_together(model, most, 0, now) or model.queue.first(1)
        return self._shed(model, batch, len(batch), now) or model.launch(batch)

    def _share(self, view: Worker, model: Lane) -> int:
        """Return the most requests that an idle worker may start."""
        return min(model.most, view.granularity, len(model.queue))

    def _pick(self, view: Worker, model: Lane, most: int, now: float) -> list[Request]:
        """Return which requests of different lengths start, at most `most`."""
        pool = Pool.waiting(view, model, most, now)
        picked = pool.shortest(now)
        picked = pool.saved(picked, True, now) or picked
        return [model.queue[number] for number in picked.numbers]

    def _in_time_together(self, model: Lane, most: int, beside: int, now: float) -> Sequence[Request]:
        """Return at most `most` requests to start, `beside` the started requests of their model.

        If not all can be in time in one batch, these are those that fill the largest batch that can be, or a smaller
        one nearly as fast per request, with the usual delay. The others may be in time in the next batch.
        """
        queue, whole = model.queue, model.estimate.whole
        newcomers = queue.alike(most) if model.spec.kinds else queue.first(most)
        if not self._config.shed or model.estimate.decoder is not None:
            return newcomers
        inputs = length_of(newcomers, model) if model.spec.kinds else 1
        ends = now + (1.0 + HELD_ONCE * (len(queue) > most)) * whole(len(newcomers) + beside, inputs)
        if all(request.deadline >= ends for request in newcomers):
            return newcomers
        # A request with a priority is never passed over, so the first of these must be in time as well.
        prior = newcomers[0]
        last = prior.deadline if prior.priority else inf

        def in_time(count: int) -> bool:
            return min(last, queue.due_last(count)) >= now + (1.0 + HELD_ONCE) * whole(count + beside, inputs)

        count = most_that(in_time, 0, len(newcomers))
        if count and not beside:
            count = model.estimate.answered(count).enough
        return queue.first(count, due=now + (1.0 + HELD_ONCE) * whole(count + beside, inputs)) if count else ()

    def _shed(self, model: Lane, newcomers: Sequence[Request], together: int, now: float) -> Shed | None:
        """Return the requests that cannot be in time in a batch of size `together` that starts now, or None.

        Only before a decoder, which is joined at any step; elsewhere such requests are passed over. If more requests
        wait than can start, places go to those that will be in time even with a long answer and the usual delay.
        """
        if not self._config.shed or model.estimate.decoder is None:
            return None
        inputs = length_of(newcomers, model)
        if len(model.queue) > len(newcomers):
            ends = now + (1.0 + HELD_ONCE) * model.estimate.whole(together, inputs)
        else:
            ends = now + model.estimate.whole(together, inputs, model.estimate.mean_outputs)
        lost = [request.id for request in newcomers if request.deadline < ends]
        return Shed(model.name, tuple(lost)) if lost else None

    def _at_a_boundary(self, view: Worker, now: float) -> Decision:
        top = view.entries[-1]
        if len(view.entries) > 1:
            return GoOn()
        own, shortest_first, closed = view.model_of(top), view.models.waiting, False
        if len(shortest_first) > 1 or own not in shortest_first:
            patience = PATIENCE * own.estimate.whole(len(top.members), top.length)
            others = [model.queue for model in shortest_first if model is not own]
            closed = any(now - queue.oldest.arrived > patience for queue in others)
            shortest_first = sorted(shortest_first, key=lambda model: model.estimate.whole(1, model.queue.shortest))
        for model in shortest_first:
            room = min(self.room(view, model), len(model.queue))
            if room > 0 and model is own:
                if closed or not gathered(own, top, room, now):
                    continue
                if top.kind is StageKind.DECODER:
                    room = sharing(own, len(top.members), room)
            if room <= 0:
                continue
            if model.queue.groups is not None:
                newcomers: Sequence[Request] = self._pick(view, model, room, now)
            else:
                newcomers = self._in_time_together(model, room, view.started(model), now)
            if not newcomers:
                continue
            shed = self._shed(model, newcomers, len(newcomers) + view.started(model), now)
            if shed is not None:
                return shed
            if self._go_first(view, model, newcomers, now):
                return model.launch(newcomers)
        return GoOn()

    def _go_first(self, view: Worker, model: Lane, newcomers: Sequence[Request], now: float) -> bool:
        """Return whether new requests run before the newest sub-batch: to catch up with it, or to the end.

        Those that differ from it in length catch up where that costs less.
        """
        top, inputs = view.entries[-1], length_of(newcomers, model)
        own = view.model_of(top)
        joins = model is own and top.takes(newcomers[0])
        pays = joins and (top.kind is StageKind.DECODER or joining_pays(own, top, len(newcomers), inputs))
        if pays or (joins and model.queue.groups is None):
            delay, bound = own.estimate.between(len(newcomers), top.stage, top.step, inputs), BOUND
        else:
            joins = False
            delay = model.estimate.whole(len(newcomers), inputs, model.estimate.mean_outputs)
            pays, bound = passing_pays(own, top, len(newcomers), delay), BOUND if model is own else BOUND_PASSING
        if not pays:
            return False
        most = bound * own.estimate.whole(len(top.members), top.length) - delay
        held_up = max([request.delayed for request in top.members.values()]) > most
        return not held_up and all_in_time(view, model, newcomers, now, joins=joins, inputs=inputs)


def all_in_time(
    view: Worker,
    model: Lane,
    newcomers: Sequence[Request],
    now: float,
    length: Callable[[Request], int | None] = lambda _: None,
    *,
    joins: bool = True,
    inputs: int = 0,
) -> bool:
    """Return whether all are in time if `newcomers` catch up with the newest sub-batch.

    If that belongs to another model, or none of them `joins` it, they run before it instead. A request that is late
    already does not count: it would keep all others waiting for nothing. `length` returns the steps of an answer if
    they are known, `inputs` is the length of the newcomers (`length_of`).
    """

    def longest_answer(lane: Lane, requests: Iterable[Request]) -> int | None:
        if lane.estimate.decoder is None:
            return None
        return max([steps for request in requests if (steps := length(request)) is not None], default=None)

    estimate, inputs, below = model.estimate, inputs or length_of(newcomers, model), view.entries
    if not below or not joins or below[-1].spec is not model.spec:
        ends = now + estimate.whole(len(newcomers), inputs, longest_answer(model, newcomers))
    else:
        # 1. Those that they join.
        top, below = below[-1], below[:-1]
        running, together = len(top.members), [*top.members.values(), *newcomers]
        caught_up = now + estimate.between(len(newcomers), top.stage, top.step, inputs)
        steps = joined_length(top, len(newcomers), inputs)
        ends = caught_up + estimate.rest(len(together), top.stage, top.step, steps, longest_answer(model, together))
        # Without a decoder all of them end at once.
        for request in top.members.values() if estimate.decoder is not None or top.due < ends else ():
            answer = length(request)
            if answer is None and request.steps:
                answer = estimate.outputs_after(request.steps)
            place = top.stage, request.steps or top.step, steps, answer
            in_time = now + estimate.rest(running, *place) <= request.deadline
            if in_time and caught_up + estimate.rest(len(together), *place) > request.deadline:
                return False
    # 2. They themselves, unless they would be late even alone.
    for request in newcomers:
        if request.deadline < ends and now + estimate.whole(1, request.inputs, length(request)) <= request.deadline:
            return False
    # 3. The sub-batches below, which resume then.
    for entry in reversed(below):
        lane, members = view.model_of(entry), entry.members.values()
        answers = longest_answer(lane, members)
        rest = lane.estimate.rest(len(members), entry.stage, entry.done, entry.length, answers)
        ends += rest
        if entry.due < ends and any(now + rest <= r.deadline < ends for r in members):
            return False
    return True


def quickest(model: Lane, most: int, now: float, others: int = 0) -> int:
    """Return how many waiting requests an idle worker should start together, at most `most`.

    Q requests of the model wait, O `others` wait for other models, and requests arrive at a rate r. A batch of b takes
    T(b). All together spend T(b) (Q + O) + r T(b)^2 / 2 seconds here until it ends, and Q - b + r T(b) of the model
    wait then. Let V(Q) be the seconds that all requests together will spend here. Expanded to second order, its slope
    is V'(Q) = (Q + b / 2 + O) / (b / T(b) - r), and the b for which that is least starts. Value iteration, which knows
    r, finds hardly anything better. The rate is the mean of some twenty gaps, so it is often above the throughput of
    all batches, where the cost means nothing: no more than `BELIEVED` of the highest throughput is taken.
    """
    if most == 1:
        return most
    if model.estimate.decoder is not None:  # others join it at each step: what counts is how many share one
        return sharing(model, 0, most)
    answered = model.estimate.answered(most)
    coming = min(model.queue.rate(now), BELIEVED * answered.most)
    best, least = answered.quickest, inf
    for batch, rate in answered.rates:
        waiting = len(model.queue) + 0.5 * batch + others
        if rate > coming and waiting < least * (rate - coming):
            least, best = waiting / (rate - coming), batch
    return best


def sharing(model: Lane, running: int, most: int) -> int:
    """Return how many of up to `most` new requests should share decoder steps with `running` ones.

    As many as let the steps write nearly the most tokens a second. Costs jump behind each batch size that steps are
    compiled for: there one request more holds all others up for longer than it would wait for one of them to leave.
    """
    least = 0 if running else 1
    rates = model.estimate.tokens(running + most)[running + least - 1 :]
    enough = ALIKE * max(rates)
    return least + max(place for place, rate in enumerate(rates) if rate >= enough)


def gathered(model: Lane, top: SubBatch, coming: int, now: float) -> bool:
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
    # Of a crowd, requests of similar length start.
    inputs = length_of(model.queue.first(1 if crowded else coming), model)
    once, twice = (estimate.between(n, top.stage, top.step, inputs) for n in (coming, 2 * coming))
    shared, unit = max(0.0, 2.0 * once - twice), estimate.unit(running, top.stage)
    if crowded:
        fixed = max(LEAST_FIXED * unit, 2.0 * unit - estimate.unit(2 * running, top.stage))
        return coming * coming * model.estimate.mean_outputs * fixed >= 2.0 * shared * (running + 0.5 * coming) ** 2
    rate = min(model.queue.rate(now), running / (model.estimate.mean_outputs * unit))
    return coming * coming >= 2.0 * rate * running * shared


def joining_pays(model: Lane, top: SubBatch, coming: int, inputs: int) -> bool:
    """Return whether the sum of latencies falls if `coming` new requests catch up with a batch before a decoder.

    `inputs` is their length (`length_of`).
    """
    estimate, running, outputs = model.estimate, len(top.members), model.estimate.mean_outputs
    caught_up = estimate.between(coming, top.stage, top.step, inputs)
    rest = estimate.rest(running, top.stage, top.step, top.length, outputs)
    length = joined_length(top, coming, inputs)
    after = estimate.rest(running + coming, top.stage, top.step, length, outputs)
    whole = estimate.whole(coming, inputs, outputs)
    return (running + coming) * (caught_up + after) < running * rest + coming * (rest + whole)


def passing_pays(own: Lane, top: SubBatch, coming: int, delay: float) -> bool:
    """Return whether that sum falls if requests of another model, which take `delay`, go first: shorter work first."""
    rest = own.estimate.rest(len(top.members), top.stage, top.done, top.length, own.estimate.mean_outputs)
    return len(top.members) * delay < coming * rest


def length_of(requests: Sequence[Request], model: Lane) -> int:
    """Return the length that the time of a batch of these depends on, or the steps of the longest input."""
    return batch_length([request.inputs for request in requests], model.spec.packs)


def most_that(fit: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number up to `most` that fits, or `least`; where a number fits, so do all smaller ones."""
    while least < most:
        middle = (least + most + 1) // 2
        if fit(middle):
            least = middle
        else:
            most = middle - 1
    return least


@mypyc_attr(allow_interpreted_subclasses=True)
class Late(LazyPlus):
    """The default policy: decides over batches, workers, learned caches and deadlines together."""

    counts_exits = True

    def table(self) -> BatchTable:
        """Return an empty table, of which any requests may go on."""
        return BatchTable()

    def _share(self, view: Worker, model: Lane) -> int:
        """Return how many requests a worker may start: if others are idle too, its share of the waiting ones.

        It is 0 if a smaller idle worker fits better.
        """
        most = super()._share(view, model)
        if len(view.workers) < 2 or view.entries:
            return most
        waiting = len(model.queue)
        idle = [one for one in view.workers if not one.entries and one is not view]
        if waiting < view.granularity and any(one.granularity < view.granularity for one in idle):
            return 0
        alike = 1 + sum(one.granularity == view.granularity for one in idle)
        return min(most, -(-waiting // alike))

    def decide(self, view: Worker, now: float) -> Decision:
        """Launch, go on, shed, or leave waiting requests to workers that fit better."""
        if view.models.decode or not view.models.exit:
            return super().decide(view, now)
        return self._by_length(view, now) if view.models.lengths else self._by_rate(view, now)

    def _by_rate(self, view: Worker, now: float) -> Decision:
        best = -inf  # expected answers a second
        decision: Decision | None = None
        waiting, sheds = view.models.requests + view.resting, self._config.shed
        lone = len(view.entries) == 1 and not view.models.waiting
        for place, entry in enumerate(view.entries):
            model, resting, stage = view.model_of(entry), len(entry.members), entry.stage
            most = min(model.most, view.granularity)
            # A full batch gains nothing by waiting. But where misses may be dropped, it takes time from new requests,
            # of which most leave: the digits' network answered 3 to 9 % fewer than if none were dropped.
            full = resting >= most and not may_be_dropped(model, entry)
            count = together(model, stage, resting, waiting, most, now)
            in_time = not sheds or entry.due >= now + model.estimate.until_exit(stage, count)
            if count == resting and in_time and (lone or full):
                return GoOn(place)
            chosen: Sequence[Request] = ()
            if count < resting or not in_time:
                chosen = sorted(entry.members.values(), key=attrgetter("deadline"))
                if not in_time:
                    due_last = [inf, *[one.deadline for one in reversed(chosen)]]
                    count, due = fitting(model, stage, count, now, due_last.__getitem__)
                    chosen = [one for one in chosen if one.deadline >= due]
                chosen = chosen[:count]
                if not chosen:  # none can be in time, even alone
                    return Shed(model.name, tuple(entry.members))
                count = len(chosen)
            rate = model.estimate.best_rate(stage, count)
            go_on = GoOn(place, tuple([one.id for one in chosen]) if count < resting else ())
            if full:
                return go_on
            if rate > best:
                best, decision = rate, go_on
        rate, start = self._quickest_start(view, waiting, now)
        if rate > best:
            decision = start
        return decision or Wait()

    def _quickest_start(self, view: Worker, waiting: int, now: float) -> tuple[float, Decision | None]:
        """Return the most answers a second that new requests would give, and the decision to start those."""
        best, found, sheds = -inf, None, self._config.shed
        begun = Begun.of(view, now) if sheds else NOTHING
        for model in view.models.waiting:
            most = self._share(view, model)
            if not most:
                continue
            count, due = together(model, 0, len(model.queue), waiting, most, now), -inf
            if sheds:
                count, due = begun.leave(model, count, now)
                if not count:
                    if not view.entries:  # none can be in time, even alone
                        return inf, Shed(model.name, tuple(model.queue))
                    continue
            requests = model.queue.first(count, due=due) or model.queue.first(1)
            rate = model.estimate.best_rate(0, len(requests))
            if rate > best:
                best, found = rate, model.launch(requests)
        return best, found

    def _by_length(self, view: Worker, now: float) -> Decision:
        """Decide if requests of some model differ in length: as `_by_rate`, but by the cost of each batch's length.

        The batch with the most answers a second runs, unless others would be late behind it.
        """
        for entry in view.entries if self._config.shed else ():
            lost = hopeless(view, entry, now)
            if lost:
                return Shed(entry.spec.name, lost)
        pools = [Pool.resting(view, entry, now) for entry in view.entries]
        for model in view.models.waiting:
            most = self._share(view, model)
            if most:
                pools.append(Pool.waiting(view, model, most, now))
        begun = Begun.of(view, now) if self._config.shed else NOTHING
        best, chosen, runs = -inf, None, 0
        for place, pool in enumerate(pools):
            picked = begun.leave_of(pool, pool.shortest(now), now)
            if picked is None:
                continue
            rate = pool.lane.estimate.best_rate(pool.stage, len(picked.turns), picked.length)
            if rate > best:
                best, chosen, runs = rate, picked, place
        if chosen is None:
            return late_alone(pools, now) or Wait()
        for place, pool in enumerate(pools):
            if place < len(view.entries) and may_be_dropped(pool.lane, view.entries[place]):
                continue  # what may be dropped takes no time from others
            urgent = pool.saved(chosen, place == runs, now)
            saved = None if urgent is None else begun.leave_of(pool, urgent, now)
            if saved is not None:
                chosen, runs = saved, place
                break
        if runs < len(view.entries):
            all_of_them = len(chosen.turns) == len(view.entries[runs].members)
            return GoOn(runs, () if all_of_them else chosen.numbers)
        return Launch(pools[runs].lane.name, chosen.numbers)


class Begun:
    """What a worker has started of models with levels: all of it ends in `rests` seconds if no request leaves early.

    `spare` are the seconds that may pass before that without making any late. What calibration has shown of a level
    holds for all requests that start at it. A request that has started and is dropped is a hard one, which would have
    run to the end and so been right: of those that are answered, more are wrong. So requests are dropped before they
    start, except those at the overload level (`Depth`), which do not count here.
    """

    def __init__(self, rests: float, spare: float) -> None:
        self.rests = rests
        self.spare = spare

    @classmethod
    def of(cls, view: Worker, now: float) -> "Begun":
        """Return what a worker has started, in the order of deadlines."""
        rests, spare = 0.0, inf
        for entry in sorted(view.entries, key=attrgetter("due")):
            lane = view.model_of(entry)
            if lane.depth is not None:
                kept, due = entry.kept()
                if kept:
                    rests += lane.estimate.rest(kept, entry.stage, 0, entry.length)
                    spare = min(spare, due - now - rests)
        return cls(rests, spare)

    def leave(self, model: Lane, most: int, now: float) -> tuple[int, float]:
        """Return how many new requests may start, at most `most`, and when they end.

        With levels, at the end of the network, behind what has started, with as many in each stage as are expected to
        reach it; if there had to be time for all, 6 % fewer would be answered at twice the capacity. If they may be
        dropped, at the first exit.
        """
        levels, prospects, due_last = model.keeps, model.estimate.prospects, model.queue.due_last

        def end(count: int) -> float:
            return now + (self.rests + prospects(0, count)[-1][1] if levels else prospects(0, count)[0][1])

        def may_start(count: int) -> bool:
            return due_last(count) >= end(count) and prospects(0, count)[0][1] <= self.spare

        count = most_that(may_start, 0 if levels or self.spare < inf else 1, most)
        return count, end(count) if count else inf

    def leave_of(self, pool: Pool, picked: Picked, now: float) -> Picked | None:
        """Return those of a batch that may start, if requests differ in length."""
        lane = pool.lane
        keep = lane.keeps
        if pool.stage or (not keep and self.spare == inf):
            return picked
        turns, length = picked.turns, picked.length
        while turns:
            if len(turns) == 1:
                length = pool.length(turns[0])
            prospects = lane.estimate.prospects(0, len(turns), length)
            if prospects[0][1] <= self.spare:
                end = now + self.rests + prospects[-1][1]
                kept = turns if not keep else [turn for turn in turns if turn[1] >= end]
                if kept:
                    return Picked(kept, length, prospects[0][1], picked.latest)
            turns = turns[: len(turns) // 2]
        return None


NOTHING = Begun(0.0, inf)


def may_be_dropped(lane: Lane, entry: SubBatch) -> bool:
    """Return whether all of a sub-batch that rests may be dropped (`Depth`)."""
    return lane.depth is not None and lane.depth.may_drop and not entry.kept()[0]


def late_alone(pools: Sequence[Pool], now: float) -> Shed | None:
    """Return the decision to shed requests that wait and would be late even alone, if there are any."""
    for pool in pools:
        lost = pool.late_alone(now)
        if lost:
            return Shed(pool.lane.name, lost)
    return None


def hopeless(view: Worker, entry: SubBatch, now: float) -> tuple[int, ...]:
    """Return the members of a resting sub-batch that would be late even if each went on alone."""
    lane, stage = view.model_of(entry), entry.stage
    alone = lane.estimate.exits_at(stage)
    if entry.due >= now + alone[1, lane.classed(entry.inputs)]:
        return ()
    return tuple([one.id for one in entry.members.values() if one.deadline < now + alone[1, one.length]])


def fitting(model: Lane, stage: int, most: int, now: float, due_last: Callable[[int], float]) -> tuple[int, float]:
    """Return the most requests, at least one, that can be in time together at the next exit, and when that is.

    `due_last(n)` is the earliest of the n latest deadlines.
    """
    until_exit = model.estimate.until_exit
    count = most_that(lambda n: due_last(n) >= now + until_exit(stage, n), 1, most)
    return count, now + until_exit(stage, count)


def together(model: Lane, stage: int, count: int, waiting: int, most: int, now: float) -> int:
    """Return how many of the `count` requests at a stage go on together, at most `most`; `waiting` wait anywhere.

    In batches of b, which take T(b) until a member may leave, each of n requests waits for (n + b) / 2b batches, and
    each other request for n / b; meanwhile requests arrive at a rate r. If m requests are answered per second with all
    stages in their best batch size, and the share S of all requests runs this stage, the worker is busy for a share
    rho(b) = r (1 / m + S (T(b) / b - min T(b) / b)). So the result is the b for which T(b) / b ((n + b) / 2 + others) /
    (1 - rho(b)) is least; where rho is never below 1, the b with nearly the least T(b) / b.

    r is not bounded as in `quickest`. With a bound of 0.94 m, batches stay small when more come than can be answered,
    and ResNet-56 has 2 to 4 % fewer in time within twice what a request takes alone.
    """
    limit = min(most, count)
    if limit == 1:
        return 1
    estimate, coming, others = model.estimate, model.queue.rate(now), waiting - count
    shares = estimate.shares(stage, limit, most)
    busy, share = coming / shares.answered, coming * estimate.alive[stage]
    least, best = inf, shares.enough
    for size, cost, extra in shares.by_size:
        free = 1.0 - busy - share * extra
        if free > 0.0:
            score = cost * (0.5 * (count + size) + others)
            if score < least * free:
                least, best = score / free, size
    return best
