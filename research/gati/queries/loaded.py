"""The traffic application under load: Poisson arrivals into the real scheduler, in batches of one."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

import numpy as np

from latebind.domain.actions import Outcome, StepEnded
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, Outlook
from latebind.domain.model import ModelSpec
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, Step
from research.gati.queries.sides import Side, baseline
from research.gati.queries.simulated import Figures, Task, run
from research.gati.queries.traffic import FACES, OBJECTS, SHARES, TABLE_5, VEHICLES, Traffic, application, model_name

BATCHING = PolicyConfig("late", max_batch=1)  # the paper runs batches of one
AT_ONCE = 256  # requests that may wait for a model
TRIED = 1000  # requests by which is found what a query takes alone


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """So many requests due after `deadline` seconds.

    They come `load` times as fast as `workers` carry with the baseline of equal split, nobody shed.
    """

    side: Side
    deadline: float
    load: float
    traffic: Traffic
    requests: int
    seed: int = 0
    workers: int = 4


@dataclass(frozen=True, slots=True)
class LoadedResult:
    """What became of each request: the chance that its answer is right, 0 if late or none, and its seconds.

    Requests that were shed have no seconds (NaN).
    """

    task: LoadedTask
    right: Figures
    seconds: Figures

    @property
    def missed(self) -> float:
        """The share of requests that were shed, or ended late."""
        return float((self.right == 0.0).mean())


def run_loaded(task: LoadedTask) -> LoadedResult:
    """Run one task."""
    query = application(task.side.planner)
    served = tuple(_served(task.traffic, task.side, step, option) for step, option in _every_model())
    slots = task.requests + 1  # the simulator gives each request a slot of its own
    simulator = Simulator(SchedulerConfig(served, task.workers, BATCHING, queries=(query,), slots=slots))
    records = sorted(simulator.run(_arrivals(task)), key=lambda record: record.request)
    simulator.scheduler.check()
    chances = _chances(simulator.steps)
    right = [
        chances[one.request] if one.outcome is Outcome.ANSWERED and one.latency <= task.deadline + 1e-9 else 0.0
        for one in records
    ]
    seconds = [one.latency if one.outcome is Outcome.ANSWERED else np.nan for one in records]
    return LoadedResult(task, np.array(right), np.array(seconds))


def _every_model() -> list[tuple[int, int]]:
    return [(step, option) for step, models in enumerate(TABLE_5) for option in range(len(models))]


def _served(traffic: Traffic, side: Side, step: int, option: int) -> ServedModel:
    """Return a model with a stage up to each place where it may be left."""
    outlook = traffic.outlook(step, option, caches=side.caches)
    stages = [end - begin for begin, end in zip((0.0, *outlook.ends[:-1]), outlook.ends, strict=True)]
    caches = tuple(range(len(stages) - 1))
    spec = ModelSpec(model_name(step, option), "1", (), (), len(stages), 1, lookups=caches)
    costs = ModelCosts(
        tuple(Curve((1,), (seconds,)) for seconds in stages),
        {stage: Curve((1,), (0.0,)) for stage in caches},
        {stage: outlook.chances[stage] for stage in caches},
    )
    return ServedModel(spec, costs, AT_ONCE)


def _arrivals(task: LoadedTask) -> list[Arrival]:
    """Return the requests: the same for every side, but for where its gates may be left."""
    random, time, arrivals = Random(task.seed), 0.0, []
    rate = task.load * task.workers / alone(task.deadline, task.traffic)
    gates = [task.traffic.outlook(OBJECTS, i, caches=task.side.caches) for i in range(len(TABLE_5[OBJECTS]))]
    for _ in range(task.requests):
        time += random.expovariate(rate)
        kind, draw = random.random(), random.random()
        steps = (
            Step(tuple(_leaves(gate, draw) for gate in gates)),
            Step((0,) * len(TABLE_5[FACES]), kind < SHARES[0]),
            Step((0,) * len(TABLE_5[VEHICLES]), SHARES[0] <= kind < sum(SHARES)),
        )
        arrivals.append(Arrival(time, "traffic", task.deadline, 0, steps=steps))
    return arrivals


def _leaves(gate: Outlook, draw: float) -> int:
    """Return the stage behind which a gate is left."""
    reached = list(accumulate(gate.chances))
    return next((stage for stage, share in enumerate(reached) if draw < share), len(reached) - 1)


@cache
def alone(deadline: float, traffic: Traffic) -> float:
    """Return what a query takes on average with the baseline of equal split, seconds."""
    return float(run(Task(baseline("equal"), deadline, traffic, TRIED)).seconds.mean())


def _chances(steps: list[StepEnded]) -> dict[int, float]:
    """Return how likely each query is right with the models that answered it."""
    chances: dict[int, float] = {}
    for step in steps:
        accuracy = TABLE_5[step.node][step.option].accuracy
        chances[step.request] = chances.get(step.request, 1.0) * accuracy
    return chances
