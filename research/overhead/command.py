"""`python -m research scheduler`: what deciding late costs on one core, by policy and queue length."""

from random import Random
from typing import Annotated

from typer import Option

from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy, make_policy
from latebind.batching.requests import Lane, Models, Request
from latebind.batching.workers import BatchTable, Worker
from latebind.bench.rounds import Progress
from latebind.cli.console import Row, reporting
from latebind.cli.options import Seed
from latebind.domain.actions import Action, Run, WakeAt
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Level, ModelCosts, at_any_length
from latebind.domain.events import Arrived, StageDone, Woke
from latebind.domain.model import ModelSpec
from latebind.scheduler import Scheduler
from research.evaluation import Found, Output, Words, evaluate
from research.overhead.lengths import DUE, MIXES, length_row
from research.overhead.watch import Watch
from research.policies import BATCHING

STAGES = 8
LOOKUPS = {2: 0.3, 4: 0.2}  # stages with a lookup behind them, and the share of requests that leaves there
SILENT = 0.5  # of the lookups answer nobody, so that boundaries behind them are seen at which nobody leaves
HITS = 0.3  # of a batch that the others answer
MAX_BATCH = 16
BACKLOGS = (0, 10, 1000)
LEVELS = 8  # of an operating curve, evenly between the whole network and `LOOKUPS`
OTHERS = 100  # models without a curve that have had a request, beside one that has a curve


def scheduler(
    policy: Annotated[Words, Option(help="A policy to measure; may be repeated.")] = None,
    events: Annotated[int, Option(help="How many events each measurement has.")] = 6_000,
    seed: Seed = 0,
    *,
    output: Output,
) -> None:
    """Measure what scheduler and policies cost on one core: a stage boundary, and a decision.

    Times are CPU time of the thread, which means something on a busy machine too, and clock time beside it. Boundaries
    are those of a model with learned caches behind some of its stages, at which no request leaves: behind a stage
    without and with a lookup while no request rests; and those while other requests rest at a stage. The second part
    has 1,000 requests that differ in length, and policies that take these into account. The third has a model whose
    fidelity follows the load: the choice of a level, by the requests that wait and the number of models beside it.
    """
    with reporting():

        def speeds(on_progress: Progress) -> Found:
            cells = [(one, waiting) for one in policy or BATCHING for waiting in BACKLOGS]
            rows = []
            for number, (one, waiting) in enumerate(cells):
                on_progress(one, number / len(cells))
                rows.append(speed_row(one, waiting=waiting, events=events, seed=seed))
            return Found({"CPU (by the clock)": rows})

        def lengths(on_progress: Progress) -> Found:
            some = [one for one in policy or BATCHING if one in ("late", "lazy+")]
            cells = [(one, mix, due) for one in some for mix in MIXES for due in DUE]
            rows = []
            for number, (one, mix, due) in enumerate(cells):
                on_progress(f"{one}, {mix}", number / len(cells))
                rows.append(length_row(one, mix, due, events=events, seed=seed))
            return Found({"requests that differ in length: CPU (by the clock)": rows})

        def levels(on_progress: Progress) -> Found:
            cells = [
                (curves, others, waiting)
                for curves, others in ((1, 0), (8, 0), (1, OTHERS))
                for waiting in BACKLOGS[1:]
            ]
            rows = []
            for number, cell in enumerate(cells):
                on_progress("{} with a curve, {} without, {} waiting".format(*cell), number / len(cells))
                rows.append(level_row(*cell, events=events))
            return Found({"a level and a decision: CPU (by the clock)": rows})

        evaluate({"speeds": speeds, "lengths": lengths, "levels": levels}, output)


class Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.watch = Watch()
        self.order = policy.order
        self.counts_exits = policy.counts_exits

    def batch_limit(self, model: Lane) -> int:
        """Ask the policy."""
        return self._policy.batch_limit(model)

    def table(self) -> BatchTable:
        """Ask the policy."""
        return self._policy.table()

    def choose_level(self, model: Lane, now: float) -> None:
        """Ask the policy."""
        self._policy.choose_level(model, now)

    def decide(self, view: Worker, now: float) -> Decision:
        """Time the policy's decision."""
        self.watch.begin()
        decision = self._policy.decide(view, now)
        self.watch.times.append(self.watch.end())
        return decision


def speed_row(policy: str, *, waiting: int, events: int, seed: int = 0) -> Row:
    """Measure one policy with `waiting` requests in the queue throughout.

    A boundary is one in the middle of a batch of several, without anybody leaving, its decision included: behind a
    stage without a lookup, and behind one, where somebody could have left. "beside" are those where others rest at a
    stage, so that there is a choice though nobody waits. A decision is one of the policy alone, where it is asked.
    """
    costs = ModelCosts(at_any_length(Curve((1, MAX_BATCH), (3e-4, 3e-3))) * STAGES, {}, LOOKUPS)
    spec = ModelSpec("net", "1", (), (), STAGES, MAX_BATCH, tuple(LOOKUPS))
    model = ServedModel(spec, costs, waiting + 10 * MAX_BATCH)
    config = SchedulerConfig((model,), 1, PolicyConfig(BATCHING[policy], MAX_BATCH))
    batch = make_policy(config.policy).batch_limit(Lane(model, Models()))
    timed = Scheduler(config)
    timed.policy = asked = Timed(timed.policy)
    watches = _play(Scheduler(config), model, waiting, batch, events, Random(seed))
    _play(timed, model, waiting, batch, events, Random(seed))
    row: Row = {"policy": policy, "largest batch": batch, "waiting": waiting}
    row |= {f"boundary us, {name}": watch.microseconds() for name, watch in watches.items()}
    return row | {"decision of it us": asked.watch.microseconds()}


def level_row(curves: int, others: int, waiting: int, *, events: int) -> Row:
    """Measure the choice of levels before a decision, and the decision, on an idle worker.

    So many requests wait, for the models with an operating curve in turn; the other models have had one each.
    """
    stages = at_any_length(Curve((1, MAX_BATCH), (3e-4, 3e-3))) * STAGES
    shares = [number / (LEVELS - 1) for number in range(LEVELS)]
    levels = tuple(
        Level(1.0 - 0.01 * number, {stage: share * rate for stage, rate in LOOKUPS.items()})
        for number, share in enumerate(shares)
    )
    asked = make_policy(PolicyConfig("late", MAX_BATCH))
    models, lanes = Models(asked.order), list[Lane]()
    for number in range(curves + others):
        spec = ModelSpec(f"net {number}", "1", (), (), STAGES, MAX_BATCH, tuple(LOOKUPS))
        curve = ModelCosts(stages, {}, LOOKUPS, levels=levels, target=1)
        costs = curve if number < curves else ModelCosts(stages, {}, LOOKUPS)
        lanes.append(lane := Lane(ServedModel(spec, costs, waiting + 1), models, counts_exits=True))
        lane.update_work(asked.batch_limit(lane))
        lane.add(Request(number, lane.name, 0, 1e6, 1e-3 * number))
        lane.remove(number)
    for number in range(waiting):
        lane = lanes[number % curves]
        lane.add(Request(len(lanes) + number, lane.name, number, 1.0 + number, 1e-3 * (len(lanes) + number)))
    view, now, choice, decision = Worker(models, asked.table()), 1e-3 * (len(lanes) + waiting), Watch(), Watch()
    for _ in range(events):
        now += 1e-9  # what is kept while the time is the same is worked out anew
        choice.begin()
        for lane in lanes[:curves]:
            asked.choose_level(lane, now)
        choice.times.append(choice.end())
        decision.begin()
        asked.decide(view, now)
        decision.times.append(decision.end())
        for lane in lanes[:curves]:
            lane.estimate_lowest()
    row: Row = {"models with a curve": curves, "without": others, "waiting": waiting}
    return row | {"levels us": choice.microseconds(), "decision us": decision.microseconds()}


def _play(
    scheduler: Scheduler, model: ServedModel, waiting: int, batch: int, events: int, random: Random
) -> dict[str, Watch]:
    """Play closed-loop traffic: whoever is answered is replaced; `HITS` leave where a lookup answers anybody."""
    watches = {name: Watch() for name in ("no lookup", "lookup", "beside")}
    last = backlog = waiting + batch
    told: list[Action] = scheduler.handle(_arrival(0, backlog), 0.0)
    running, now = _begun(scheduler, told, 0.0)
    handled, left, gone = 0, 0, set[int]()
    while handled < events:
        now += model.costs.step(running.stage, len(running.requests))
        looked = running.stage in LOOKUPS
        hits = looked and random.random() >= SILENT
        exited = tuple(i for i in running.requests if hits and random.random() < HITS)
        leaving = running.requests if running.stage == STAGES - 1 else exited
        left += len(set(leaving) - gone)  # some policies run on with those that exited
        gone = {*gone, *leaving} if running.stage < STAGES - 1 else gone.difference(leaving)
        coming = left if waiting or left == batch else 0  # where none is to wait, they come when all have gone
        alone = scheduler.stats()["running"] == len(running.requests)
        told = [action for action in told if isinstance(action, WakeAt)]  # which holds until there is another
        if coming:
            told += scheduler.handle(_arrival(last, coming, now), now)
        last, left, handled = last + coming, left - coming, handled + 1 + coming
        watch = Watch()
        watch.begin()
        actions = scheduler.handle(StageDone(running.worker, exited), now)
        took = watch.end()
        told += actions
        following, now = _begun(scheduler, told, now)
        if not leaving and len(running.requests) > 1:
            alone = alone and scheduler.stats()["running"] == len(following.requests)
            watches["beside" if not alone else "lookup" if looked else "no lookup"].times.append(took)
        running = following
    scheduler.check()
    return watches


def _begun(scheduler: Scheduler, told: list[Action], now: float) -> tuple[Run, float]:
    """Return the run that follows what was `told`, and when it begins: some policies wait for more requests first."""
    for action in reversed(told):
        if isinstance(action, Run):
            return action, now
    now = next(action.time for action in reversed(told) if isinstance(action, WakeAt))
    told += scheduler.handle(Woke(), now)
    return _begun(scheduler, told, now)


def _arrival(first: int, count: int, now: float = 0.0) -> Arrived:
    numbers = tuple(range(first, first + count))
    return Arrived("net", now + 1e6, numbers, numbers)
