"""`python -m research scheduler`: what deciding late costs on one core, by policy and queue length."""

from random import Random
from typing import Annotated

from typer import Option

from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy, make_policy
from latebind.batching.requests import Lane, Models
from latebind.batching.workers import BatchTable, Worker
from latebind.bench.rounds import Progress
from latebind.cli.console import Row, reporting
from latebind.cli.options import Seed
from latebind.domain.actions import Action, Run, WakeAt
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
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
    has 1,000 requests that differ in length, and policies that take these into account.
    """
    with reporting():

        def speeds(tell: Progress) -> Found:
            cells = [(one, waiting) for one in policy or BATCHING for waiting in BACKLOGS]
            rows = []
            for number, (one, waiting) in enumerate(cells):
                tell(one, number / len(cells))
                rows.append(speed_row(one, waiting=waiting, events=events, seed=seed))
            return Found({"CPU (by the clock)": rows})

        def lengths(tell: Progress) -> Found:
            some = [one for one in policy or BATCHING if one in ("late", "lazy+")]
            cells = [(one, mix, due) for one in some for mix in MIXES for due in DUE]
            rows = []
            for number, (one, mix, due) in enumerate(cells):
                tell(f"{one}, {mix}", number / len(cells))
                rows.append(length_row(one, mix, due, events=events, seed=seed))
            return Found({"requests that differ in length: CPU (by the clock)": rows})

        evaluate({"speeds": speeds, "lengths": lengths}, output)


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
