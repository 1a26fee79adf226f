"""The policies that are compared, and their runs on a virtual clock. A run is given by network, load, side and seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress, in_parallel
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import ModelCosts, in_turn
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import poisson, together
from research.lazybatching.policies import LAZY_EXPECTING, Oracle
from research.lazybatching.scene import Scene
from research.policies import BATCHING
from research.sides import Side, graph

WINDOWS = (0.005, 0.010, 0.025, 0.050, 0.075, 0.095)  # seconds, those that the paper names among them
SIZES = (8, 16, 32, 64)
LARGEST = 64
WARM_UP = 0.05  # of the requests: the queue is empty when they come
GROWING = 1.5  # times as long in the second half of a run as in the first: a policy that does not keep up


class Group(StrEnum):
    """The role of a side."""

    WINDOW = "GraphB, window of 5 ms or more"
    ZERO = "GraphB, window 0"
    LEAVING = "GraphB, window 0, leaving early"
    OTHER = "other"
    LAZY = "LazyB"
    ORACLE = "Oracle"
    OURS = "lazy+ and late"


JUDGED = (Group.LAZY, Group.ORACLE, Group.OURS)  # those that come between stages


def sides(*, recurrent: bool, size: int = LARGEST) -> list[Side]:
    """Return all sides: each window at the largest batch, and the best window at every batch size.

    If all stages run once, all requests of a batch end together, so none can leave it early. Nothing is shed, as in the
    paper, unless a part of the evaluation says so.
    """
    sizes = [s for s in SIZES if s <= size]
    found = [_graph(Group.WINDOW, size, window) for window in WINDOWS]
    found += [_graph(Group.WINDOW, smaller, WINDOWS[0]) for smaller in sizes if smaller < size]
    found += [_graph(Group.ZERO, smaller) for smaller in sizes]
    if recurrent:
        found += [_graph(Group.LEAVING, smaller, leave=True) for smaller in sizes]
    found.append(Side("Serial", graph(1), (Group.OTHER,)))
    for label, group, name in (
        ("continuous", Group.OTHER, "continuous"),
        ("LazyB", Group.LAZY, "lazy"),
        ("Oracle", Group.ORACLE, "oracle"),
        ("lazy+", Group.OURS, "lazy+"),
        ("late", Group.OURS, "late"),
    ):
        found.append(Side(label, PolicyConfig(BATCHING[name], size, shed=False), (group,)))
    return found


def _graph(group: Group, size: int, window: float = 0.0, *, leave: bool = False) -> Side:
    label = f"GraphB({window * 1e3:g}, {size}){' leaving' if leave else ''}"
    return Side(label, graph(size, window, leave=leave), (group,))


def few(*, recurrent: bool) -> list[Side]:
    """Return window 0 at the largest batch, with and without leaving early, and the judged policies."""
    every = sides(recurrent=recurrent)
    largest = [side for side in every if side.kinds[0] in (Group.ZERO, Group.LEAVING) and side.policy.max_batch == 64]
    return largest + [side for side in every if side.kinds[0] in JUDGED]


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


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to simulate: seeds, requests of each run, processes (0: one for each core)."""

    scene: Scene
    seeds: int = 20
    requests: int = 2_000
    processes: int = 0

    def run(self, tasks: Sequence[Task], progress: Progress) -> list[Result]:
        """Run tasks once for each seed; the results are in the order of the tasks."""
        every = [replace(task, seed=seed) for task in tasks for seed in range(self.seeds)]
        named = "{0.networks[0]} at {0.load:g}/s".format
        run_one = partial(run, scene=self.scene)
        return in_parallel(run_one, every, name=named, progress=progress, processes=self.processes)


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
    """Return the network, as one stage for a policy that never acts between stages: for that it is the same."""
    if served.spec.kinds or side.kinds[0] in JUDGED:
        return served
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
