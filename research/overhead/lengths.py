"""What deciding costs where requests differ in length: a decision beside a long queue, a boundary beside none."""

from collections.abc import Sequence
from random import Random

from latebind.batching.policy import make_policy
from latebind.batching.requests import Lane, Models, Request
from latebind.batching.workers import SubBatch, Worker
from latebind.cli.console import Row
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid, ModelCosts
from latebind.domain.events import Arrived, StageDone
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.scheduler import Scheduler
from research.overhead.watch import Watch, launched
from research.policies import BATCHING

STAGES, MAX_BATCH = 6, 32
LENGTHS, BATCHES = (4, 16, 64, 256, 512), (1, 8, 32)
ONCE, PER_TOKEN = 1.2e-3, 3e-5  # seconds of a stage: of a run, and of each token beyond the first `FREE` of it
FREE = 16
WAITING, STARTED = 1000, 8
NOW = 1.0
MIXES = {"texts": (12.0, 0.3), "a long tail": (24.0, 1.0)}  # median and spread of lengths
DUE = {"far away": 1e3, "near": 3.0}  # seconds that requests have beyond what each takes alone, at most


def model(waiting: int) -> ServedModel:
    """Return a model with costs like those of a small encoder on one core."""

    def curve(length: int) -> Curve:
        return Curve(BATCHES, tuple([ONCE + PER_TOKEN * max(0, rows * length - FREE) for rows in BATCHES]))

    row = TensorSpec("tokens", "int64", (LENGTHS[-1],), padding=0, sizes=("L",))
    spec = ModelSpec("text", "1", (row,), (row,), STAGES, MAX_BATCH, dims=(Dim("L", 1, LENGTHS[-1]),), pads=True)
    costs = ModelCosts((Grid(LENGTHS, tuple(map(curve, LENGTHS))),) * STAGES)
    return ServedModel(spec, costs, waiting + MAX_BATCH)


def drawn(mix: str, count: int, random: Random) -> list[int]:
    """Return lengths of a mix."""
    middle, spread = MIXES[mix]
    return [min(max(1, round(middle * random.lognormvariate(0.0, spread))), LENGTHS[-1]) for _ in range(count)]


def length_row(policy: str, mix: str, due: str, *, events: int, seed: int) -> Row:
    """Measure the decisions of one policy: `WAITING` requests wait, on an idle worker and beside a started batch.

    The boundary at which nobody waits is one of the whole scheduler, in the middle of a batch.
    """
    random, served = Random(seed), model(WAITING)
    asked = make_policy(PolicyConfig(BATCHING[policy], MAX_BATCH))
    models = Models(asked.order)
    lane = Lane(served, models, counts_exits=asked.counts_exits)
    lane.update_work(asked.batch_limit(lane))
    for number, length in enumerate(drawn(mix, WAITING + STARTED, random)):
        came, due_at = NOW * number / (WAITING + STARTED), NOW + random.random() * DUE[due] + lane.least(length)
        lane.add(Request(number, lane.name, number, due_at, came, length))
    started = SubBatch(lane.spec, {one: lane.remove(one) for one in range(WAITING, WAITING + STARTED)}, STAGES // 3)
    view = Worker(models, asked.table())
    row: Row = {"policy": policy, "lengths": mix, "deadlines": due}
    for name in ("idle", "at a boundary"):
        watch = Watch()
        for _ in range(events):
            watch.begin()
            asked.decide(view, NOW)
            watch.times.append(watch.end())
        row[f"decision us, {name}"] = watch.microseconds()
        view.table.entries.append(started)
    return row | {"boundary us, nobody waits": _boundary(policy, drawn(mix, STARTED, random), events).microseconds()}


def _boundary(policy: str, lengths: Sequence[int], events: int) -> Watch:
    """Time the ends of stages in the middle of batches, each of the same requests."""
    scheduler, watch = Scheduler(SchedulerConfig((model(0),), 1, PolicyConfig(BATCHING[policy], MAX_BATCH))), Watch()
    for first in range(0, events * len(lengths) // STAGES, len(lengths)):
        numbers = tuple(range(first, first + len(lengths)))
        run = launched(scheduler.handle(Arrived("text", 1e9, numbers, numbers, tuple(lengths)), 0.0))
        while True:
            stats = scheduler.stats()
            alone = not stats["queued"] and stats["running"] == len(run.requests) > 1
            watch.begin()
            actions = scheduler.handle(StageDone(0), 0.0)
            took = watch.end()
            if alone and run.stage < STAGES - 1:
                watch.times.append(took)
            if not scheduler.stats()["running"]:
                break
            run = launched(actions)
    return watch
