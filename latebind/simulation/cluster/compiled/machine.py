"""Handles the events of one machine (arrivals, ends of stages and loads, alarms): `scheduler.py`, compiled."""

from math import inf

import numpy as np

from latebind.simulation.cluster.compiled import batches, memory, queues, worth
from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.choose import best_choice, weigh
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.heap import schedule
from latebind.simulation.cluster.compiled.layout import (
    ANSWERED,
    EXPIRED,
    NOTHING,
    REFUSED_FULL,
    REFUSED_LATE,
    REFUSED_LOADING,
)
from latebind.simulation.cluster.compiled.lazy import (
    in_time_together,
    most_urgent,
    newcomers_at_a_boundary,
    oldest,
    quickest,
    share,
)
from latebind.simulation.cluster.compiled.replies import end, reply
from latebind.simulation.cluster.compiled.views import State


@compiled
def arrived(s: State, machine: int, request: int, now: float) -> None:
    """Put a request into the queue of its model, or refuse it."""
    m, r, config = of.machines(s)[machine], of.requests(s)[request], of.settings(s)[0]
    lane = machine * config.models + r.model
    model = of.models(s)[of.model_at(s, machine, r.model)]
    comes = memory.seconds_to(s, machine, lane, now)
    slack = slack_of(s, machine, lane, r.deadline, comes, now)
    r.slack = slack / model.allowed
    if of.lanes(s)[lane].count + 1 > model.max_queued:
        reply(s, machine, request, REFUSED_FULL, now)
    elif config.sheds and slack < 0.0:
        wants = slack_of(s, machine, lane, r.deadline, 0.0, now) >= 0.0
        wants = wants and memory.asked(s, machine, lane, now)
        reply(s, machine, request, REFUSED_LOADING if wants else REFUSED_LATE, now)
    else:
        queues.append(s, machine, lane, request)
        m.waiting += 1
        m.ready += of.lanes(s)[lane].open
        m.backlog += model.each * of.lanes(s)[lane].open
        m.newest = max(m.newest, r.number + 1)
        worth.heard(s, machine, lane, now)
        memory.touch(s, machine, lane)
    go_on(s, machine, now)


@compiled
def slack_of(s: State, machine: int, lane: int, deadline: float, comes: float, now: float) -> float:
    """Return the seconds between the expected answer of a request and its deadline: `Admission.slack`.

    Its model is in memory `comes` seconds from now. All work that is there already goes first.
    """
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    model = of.models(s)[of.model_of(s, machine, lane)]
    work = m.backlog
    if m.loads and m.target != lane + 1:
        coming = m.target - 1
        if memory.seconds_to(s, machine, coming, now) < max(comes, work / m.workers) and not of.lanes(s)[coming].open:
            work += of.lanes(s)[coming].count * of.models(s)[of.model_of(s, machine, coming)].each
    own = (0 if a.open else a.count) * model.each / m.workers
    return float(deadline - (now + (max(comes, work / m.workers) + own) + model.least))


@compiled
def stage_done(s: State, machine: int, worker: int, now: float) -> None:
    """Answer the requests that leave after a stage; the others rest until the worker continues them."""
    w, config = of.workers(s)[worker], of.settings(s)[0]
    batch = w.running
    b = of.batches(s)[batch]
    last = b.stage + 1 == of.models(s)[of.model_at(s, machine, b.model)].stages
    for leaves_here in (True, False):
        request = b.soonest
        while request:
            r = of.requests(s)[request]
            later = r.later
            if not leaves_here and not last:
                if config.sheds and r.deadline < now:
                    batches.leave(s, batch, request)
                    end(s, machine, request, EXPIRED, now)
            elif not leaves_here or r.leaves == b.stage:
                batches.leave(s, batch, request)
                end(s, machine, request, ANSWERED, now)
            request = later
    b.stage += 1
    if config.sheds and w.count > 1:
        let_go(s, machine, worker, now)
    w.running = 0
    memory.touch(s, machine, machine * config.models + b.model)
    batches.settle(s, machine, worker, batch, now)
    of.machines(s)[machine].undecided |= w.count > 0
    go_on(s, machine, now)


@compiled
def let_go(s: State, machine: int, worker: int, now: float) -> None:
    """Reply to requests whose deadline has passed while they rested."""
    w, batch = of.workers(s)[worker], of.workers(s)[worker].bottom
    while batch:
        above = of.batches(s)[batch].above
        if batch != w.running and of.requests(s)[of.batches(s)[batch].soonest].deadline < now:
            expire(s, machine, batch, now, now)
            if not of.batches(s)[batch].count:
                batches.drop(s, machine, worker, batch)
        batch = above


@compiled
def expire(s: State, machine: int, batch: int, earliest: float, now: float) -> None:
    """Reply to the members of a batch whose deadline is before `earliest`."""
    b = of.batches(s)[batch]
    while b.count and of.requests(s)[b.soonest].deadline < earliest:
        request = b.soonest
        batches.leave(s, batch, request)
        end(s, machine, request, EXPIRED, now)


@compiled
def loaded(s: State, machine: int, now: float) -> None:
    """Let requests start whose model has been loaded."""
    memory.loaded(s, machine, now)
    go_on(s, machine, now)


@compiled
def woke(s: State, machine: int, now: float) -> None:
    """Handle an alarm: find out which requests are late by now."""
    if now >= of.machines(s)[machine].wake:
        of.machines(s)[machine].wake = inf
    go_on(s, machine, now)


@compiled
def go_on(s: State, machine: int, now: float) -> None:
    """Decide which requests are too late, what to load and what idle workers run: `Scheduler._decide`.

    An alarm is set for the time at which the next request will be too late.
    """
    m, last, shed = of.machines(s)[machine], inf, True
    if of.settings(s)[0].sheds and (m.waiting or m.undecided):
        last = drop_late(s, machine, now)
    while shed:
        memory.decide(s, machine, now)
        shed = False
        if m.waiting or m.undecided:
            shed = launch_all(s, machine, now)
            m.undecided = 0
            if last < inf:
                wake = np.nextafter(last, inf)
                if wake != m.wake or m.wake <= now:
                    m.wake = wake
                    schedule(s, (machine + 1) * of.settings(s)[0].slots - 1, wake)


@compiled
def launch_all(s: State, machine: int, now: float) -> bool:
    """Let idle workers do what the policy decides; return whether requests were shed: `Scheduler._launch`."""
    m, unanswered = of.machines(s)[machine], of.unanswered(s)[machine]
    first = machine * (of.settings(s)[0].slots - 2)
    if m.workers == 1:
        launch(s, machine, first, now)
        return bool(of.unanswered(s)[machine] < unanswered)
    waiting = -1
    while m.waiting != waiting:
        waiting = m.waiting
        for worker in range(first, first + m.workers):
            of.workers(s)[worker].early = of.workers(s)[worker].count
        for early in (True, False):
            for worker in range(first, first + m.workers):
                if (of.workers(s)[worker].early > 0) == early:
                    launch(s, machine, worker, now)
    return bool(of.unanswered(s)[machine] < unanswered)


@compiled
def drop_late(s: State, machine: int, now: float) -> float:
    """Drop waiting requests that would be late even alone.

    Returns the latest time at which the next of them must start; infinity if nobody waits.
    """
    m = of.machines(s)[machine]
    while True:
        last, number, who, where = inf, 0, 0, 0
        lane = m.waiting_lanes - 1
        while lane >= 0:
            a = of.lanes(s)[lane]
            r = of.requests(s)[a.soonest]
            start = r.deadline - of.models(s)[of.model_at(s, machine, r.model)].least
            if start < last or (start == last and r.number < number):
                last, number, who, where = start, r.number, a.soonest, lane
            lane = a.next_waiting - 1
        if not last < now:
            return last
        dequeue(s, machine, where, who)
        end(s, machine, who, EXPIRED, now)


@compiled
def dequeue(s: State, machine: int, lane: int, request: int) -> None:
    """Remove a waiting request from its queue."""
    queues.remove(s, machine, lane, request)
    queues.work_left(s, machine, lane)


@compiled
def launch(s: State, machine: int, worker: int, now: float) -> None:
    """Let an idle worker do what the policy decides, until it runs a batch or has nothing to do."""
    w, m, config = of.workers(s)[worker], of.machines(s)[machine], of.settings(s)[0]
    while not w.running:
        if not m.ready:
            batch = batches.going(s, worker)
            if batch:
                run(s, machine, worker, batch, now)
            if batch or not w.count:
                return
        if config.graph:
            whole_batch(s, machine, worker, now)
        elif config.exits:
            most_answers(s, machine, worker, now)
        elif w.count:
            at_a_boundary(s, machine, worker, now)
        else:
            from_rest(s, machine, worker, now)


@compiled
def run(s: State, machine: int, worker: int, batch: int, now: float) -> None:
    """Run the stage of a batch on a worker, and schedule its end."""
    b = of.batches(s)[batch]
    of.workers(s)[worker].running, b.ran = batch, b.count
    model = of.models(s)[of.model_at(s, machine, b.model)]
    seconds = of.seconds(s)[model.profile, b.stage, b.count]
    of.busy(s)[machine] += seconds
    schedule(s, worker + 2 * machine, now + seconds)


@compiled
def start(s: State, machine: int, worker: int, lane: int, first: int, count: int, now: float) -> None:
    """Start a batch of `count` waiting requests, from `first` on in the order of deadlines."""
    batches.rest(s, of.workers(s)[worker].top, now)
    batch = batches.begin(s, machine, worker, lane % of.settings(s)[0].models, NOTHING)
    request = first
    for _ in range(count):
        later = of.requests(s)[request].later
        dequeue(s, machine, lane, request)
        batches.join(s, batch, request)
        request = later
    batches.settle(s, machine, worker, batch, now)
    memory.touch(s, machine, lane)
    run(s, machine, worker, of.workers(s)[worker].top, now)


@compiled
def whole_batch(s: State, machine: int, worker: int, now: float) -> None:
    """Continue the batch, or start the largest one of the model with the oldest request: `batching/graph.py`."""
    w = of.workers(s)[worker]
    if w.count:
        run(s, machine, worker, w.top, now)
        return
    lane = oldest(s, machine)
    a, config = of.lanes(s)[lane], of.settings(s)[0]
    model = of.models(s)[of.model_of(s, machine, lane)]
    count = min(a.count, model.most)
    batch = batches.begin(s, machine, worker, lane % config.models, NOTHING)
    for _ in range(count):
        request = a.first
        dequeue(s, machine, lane, request)
        batches.put_in(s, batch, request)
    memory.touch(s, machine, lane)
    run(s, machine, worker, batch, now)


@compiled
def from_rest(s: State, machine: int, worker: int, now: float) -> None:
    """Start a batch of the model with the most urgent request, on a worker without batches: `LazyPlus.decide`."""
    lane = most_urgent(s, machine)
    a, m = of.lanes(s)[lane], of.machines(s)[machine]
    model = of.models(s)[of.model_of(s, machine, lane)]
    count = quickest(s, lane, model.profile, share(s, machine, worker, lane), m.ready - a.count, now)
    first, count = in_time_together(s, lane, model.profile, count, 0, now)
    start(s, machine, worker, lane, first or a.soonest, count or 1, now)


@compiled
def at_a_boundary(s: State, machine: int, worker: int, now: float) -> None:
    """Start newcomers before the batch on top, or continue that batch: `LazyPlus._at_a_boundary`."""
    lane, first, count = newcomers_at_a_boundary(s, machine, worker, now)
    if lane < 0:
        run(s, machine, worker, of.workers(s)[worker].top, now)
    else:
        start(s, machine, worker, lane, first, count, now)


@compiled
def most_answers(s: State, machine: int, worker: int, now: float) -> None:
    """Run what gives the most answers a second, or drop members of a batch that are late: `Late._most_answers`."""
    count, batch, earliest = weigh(s, machine, worker, now)
    if batch:
        shed_begun(s, machine, worker, batch, earliest, now)
        return
    choice = of.choices(s)[best_choice(s, count, now)]
    if choice.batch:
        part_of(s, machine, worker, choice.batch, choice.first, choice.count, now)
    else:
        start(s, machine, worker, choice.lane, choice.first, choice.count, now)


@compiled
def shed_begun(s: State, machine: int, worker: int, batch: int, earliest: float, now: float) -> None:
    """Drop members of a batch that are due before `earliest`, because they cannot be in time any more."""
    expire(s, machine, batch, earliest, now)
    if not of.batches(s)[batch].count:
        batches.settle(s, machine, worker, batch, now)


@compiled
def part_of(s: State, machine: int, worker: int, pool: int, first: int, count: int, now: float) -> None:
    """Continue `count` requests of a resting batch, from `first` on in the order of deadlines; the others rest on."""
    p, batch = of.batches(s)[pool], pool
    if count < p.count:
        batch = batches.begin(s, machine, worker, p.model, p.stage)
        request = first
        for _ in range(count):
            later = of.requests(s)[request].later
            batches.leave(s, pool, request)
            batches.join(s, batch, request)
            request = later
    run(s, machine, worker, batch, now)
