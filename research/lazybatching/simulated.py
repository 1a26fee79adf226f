"""Simulated runs, many at a time. Each is given by network, load, policy and seed, so any can be repeated alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import in_parallel
from latebind.domain.actions import Outcome
from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.costs import ModelCosts, in_turn
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import poisson, together
from research.lazybatching.policies import LAZY_EXPECTING, Oracle
from research.lazybatching.scene import Scene
from research.lazybatching.sides import Group, Side

WARM_UP = 0.05  # of the requests: the queue is empty when they come
GROWING = 1.5  # times as long in the second half of a run as in the first: a policy that does not keep up
PREEMPTING = {Group.LAZY, Group.ORACLE, Group.OURS}


@dataclass(frozen=True, slots=True)
class Task:
    """One run: `requests` of each network at `load` a second, due `allowed` seconds after they come."""

    networks: tuple[str, ...]
    load: float
    side: Side
    seed: int
    requests: int
    allowed: float = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a task: seconds, shares and requests a second; `models` has mean and p99 of each network.

    `growth` is the mean latency of the second half over that of the first.
    """

    task: Task
    mean: float
    p99: float
    late: float
    throughput: float
    growth: float
    models: dict[str, tuple[float, float]]


def run_all(
    tasks: Sequence[Task], scene: Scene, *, progress: Callable[[str, float], None], processes: int = 0
) -> list[Result]:
    """Run tasks on all cores, or so many processes; the results are in the order of the tasks."""

    def name(task: Task) -> str:
        return f"{task.networks[0]} at {task.load:g}/s"

    return in_parallel(partial(run, scene=scene), tasks, name=name, progress=progress, processes=processes)


def run(task: Task, scene: Scene) -> Result:
    """Run one task."""
    models = [_served(scene.served(name), task.side) for name in task.networks]
    random = Random(task.seed)
    streams = [
        poisson(
            model,
            rate=task.load,
            requests=task.requests,
            allowed=task.allowed,
            random=Random(random.random()),
            lengths=scene.lengths(name),
        )
        for name, model in zip(task.networks, models, strict=True)
    ]
    simulator = Simulator(SchedulerConfig(tuple(models), 1, task.side.policy))
    calls = list(together(*streams))
    if isinstance(simulator.scheduler, Scheduler) and isinstance(simulator.scheduler.policy, Oracle):
        simulator.scheduler.policy.lengths = {number: call.outputs for number, call in enumerate(calls)}
    records = simulator.run(calls)
    simulator.scheduler.check()
    counted = [record for record in records if record.request >= WARM_UP * len(records)]
    seconds = _latencies(counted)
    counted.sort(key=lambda record: record.arrived)
    half = len(counted) // 2
    span = max(record.ended for record in counted) - min(record.arrived for record in counted)
    each = {model.spec.name: _latencies([r for r in counted if r.model == model.spec.name]) for model in models}
    return Result(
        task=task,
        mean=float(seconds.mean()),
        p99=float(np.percentile(seconds, 99)),
        late=1.0 - float((seconds <= task.allowed).sum()) / len(counted),
        throughput=len(seconds) / span,
        growth=float(_latencies(counted[half:]).mean() / _latencies(counted[:half]).mean()),
        models={name: (float(found.mean()), float(np.percentile(found, 99))) for name, found in each.items()},
    )


def _served(served: ServedModel, side: Side) -> ServedModel:
    if served.spec.kinds or side.group in PREEMPTING:
        return served
    return whole(served)


def whole(served: ServedModel) -> ServedModel:
    """Return the network as one stage, which is the same for a policy that never acts between stages."""
    costs = ModelCosts((in_turn(served.costs.stages),), output_steps=served.costs.output_steps)
    return replace(served, spec=replace(served.spec, stages=1), costs=costs)


def _latencies(records: Iterable[Record]) -> NDArray[np.float64]:
    found = [record.latency for record in records if record.outcome is Outcome.ANSWERED]
    return np.array(found or [np.inf])


def shedding(side: Side) -> Side:
    """Return the same policy, refusing and dropping requests that cannot be in time."""
    return replace(side, policy=msgspec.structs.replace(side.policy, shed=True))


def covering(side: Side, share: float) -> Side:
    """Return `lazy` with another share of answers that are no longer than it expects."""
    policy = msgspec.structs.replace(side.policy, name=LAZY_EXPECTING[share])
    return replace(side, label=f"{side.label}, N {share:.0%}", policy=policy)
