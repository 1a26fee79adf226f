"""Requests of mixed deadlines: whom admission refuses for nothing, and what is left of the peak under overload.

The same requests are played twice, with admission and without (`shed` off: nobody is refused, or dropped for being
late). One is refused for nothing if it was refused as late, and without admission would have been in time. Who was
refused so that an accepted one would be in time counts as well: it shows in `in time`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import msgspec

from latebind.bench.rounds import Progress, in_parallel
from latebind.cli.console import Rows
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival

LOADS = (0.6, 0.9)
PEAK = (1.0, 1.5)  # loads at which the peak is looked for
OVERLOAD = 5.0
SECONDS = 20.0
POLICIES = ("late", "lazy+", "graph")


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of a model: their `share` of its load, the time that each has, in times of one alone, and how many come
    at once."""

    share: float
    allowed: float
    together: int = 1


MIXES: dict[str, Sequence[Sequence[Kind]]] = {  # for each of the two models
    "interactive beside bulk": ((Kind(1.0, 2000.0, 100),), (Kind(1.0, 15.0),)),
    "three deadlines": ((Kind(0.5, 10.0), Kind(0.3, 50.0), Kind(0.2, 1000.0, 50)),) * 2,
}


@dataclass(frozen=True, slots=True)
class Task:
    """One run: so many `workers`, and the load as a multiple of what they can answer."""

    policy: str
    mix: str
    exits: bool
    workers: int
    load: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Mixed:
    """What came of a run, as shares of all requests; `goodput` is answers in time a second while requests came."""

    task: Task
    requests: int
    in_time: float
    unrefused: float  # in time without admission; not played beyond capacity
    for_nothing: float
    worst: float  # of the requests with one deadline for one model, the largest share refused for nothing
    goodput: float


def mixed(seeds: int, seconds: float, processes: int, tell: Progress) -> list[Mixed]:
    """Play all mixes at the usual loads, and beyond capacity."""
    tasks = [
        Task(policy, mix, exits, workers, load, seed)
        for policy in POLICIES
        for mix in MIXES
        for exits in (False, True)
        for workers in (1, 2)
        for load in (*LOADS, *PEAK, OVERLOAD)
        for seed in range(seeds)
    ]
    return in_parallel(
        partial(play, seconds=seconds), tasks, name=lambda task: task.mix, progress=tell, processes=processes
    )


def play(task: Task, seconds: float = SECONDS) -> Mixed:
    """Play a task with and without admission."""
    models = _models(exits=task.exits)
    calls = _arrivals(task, models, seconds)
    policy = PolicyConfig(task.policy)
    with_it = Simulator(SchedulerConfig(models, task.workers, policy)).run(calls)
    free = set[int]()
    if task.load < min(PEAK):  # beyond capacity nobody is in time without admission sooner or later
        policy = msgspec.structs.replace(policy, shed=False)
        without = Simulator(SchedulerConfig(models, task.workers, policy)).run(calls)
        free = {record.request for record in without if _is_good(record, calls)}
    nothing = {r.request for r in with_it if r.outcome is Outcome.REFUSED_LATE} & free
    good = [record for record in with_it if _is_good(record, calls)]
    kinds = [(call.model, call.allowed) for call in calls]
    lost = [kinds[number] for number in nothing]
    return Mixed(
        task,
        len(calls),
        len(good) / len(calls),
        len(free) / len(calls),
        len(nothing) / len(calls),
        max(lost.count(kind) / kinds.count(kind) for kind in set(kinds)),
        sum(record.ended <= seconds for record in good) / seconds,
    )


def refused_rows(found: Sequence[Mixed]) -> Rows:
    """Return a row for each policy and load up to capacity: means over all mixes, and the worst of them."""
    rows: Rows = []
    for policy in POLICIES:
        for load in LOADS:
            some = [one for one in found if one.task.policy == policy and one.task.load == load]
            rows.append(
                {
                    "policy": policy,
                    "load": load,
                    "requests": sum(one.requests for one in some),
                    "refused for nothing": f"{_mean(some, lambda one: one.for_nothing):.2%}",
                    "in the worst mix": f"{max(one.for_nothing for one in some):.2%}",
                    "of its worst kind": f"{max(one.worst for one in some):.2%}",
                    "in time": f"{_mean(some, lambda one: one.in_time):.2%}",
                    "without admission": f"{_mean(some, lambda one: one.unrefused):.2%}",
                }
            )
    return rows


def overload_rows(found: Sequence[Mixed]) -> Rows:
    """Return a row for each policy: the goodput at five times capacity over the highest at any load."""
    rows: Rows = []
    for policy in POLICIES:
        shares = []
        for one in found:
            if one.task.policy == policy and one.task.load == OVERLOAD:
                same = [other for other in found if replace(other.task, load=OVERLOAD) == one.task]
                shares.append(one.goodput / max(other.goodput for other in same))
        rows.append({"policy": policy, "mean": f"{sum(shares) / len(shares):.3f}", "least": f"{min(shares):.3f}"})
    return rows


def _mean(found: Sequence[Mixed], of: Callable[[Mixed], float]) -> float:
    return sum(of(one) * one.requests for one in found) / sum(one.requests for one in found)


def _models(*, exits: bool) -> tuple[ServedModel, ...]:
    """Return two models of three stages, one with costlier rows than the other, with learned caches where there are
    `exits`."""
    rates = {0: 0.5, 1: 0.2} if exits else {}
    made = []
    for name, seconds, row, most in (("first", 0.01, 0.003, 8), ("second", 0.005, 0.001, 16)):
        tensors = (TensorSpec("x", "float32", (4,)),)
        costs = ModelCosts((Curve((1, 2), (seconds, seconds + row)),) * 3, {}, rates)
        made.append(ServedModel(ModelSpec(name, "1", tensors, tensors, 3, most, tuple(rates)), costs, 1 << 20))
    return tuple(made)


def _arrivals(task: Task, models: Sequence[ServedModel], seconds: float) -> list[Arrival]:
    random, calls = Random(task.seed), list[Arrival]()
    for model, kinds in zip(models, MIXES[task.mix], strict=True):
        costs, stages, most = model.costs, model.spec.stages, model.spec.max_batch
        alive = [1.0 - sum(costs.hit_rates.get(before, 0.0) for before in range(i)) for i in range(stages)]
        work = sum(share * costs.step(i, most) / most for i, share in enumerate(alive))
        alone = sum(costs.step(i, 1) for i in range(stages))
        for kind in kinds:
            rate = kind.share * task.load * task.workers / (len(models) * work * kind.together)
            time = random.expovariate(rate)
            while time < seconds:
                for _ in range(kind.together):
                    draw = random.random()
                    leaves = next((i for i in range(stages - 1) if draw < 1.0 - alive[i + 1]), stages - 1)
                    calls.append(Arrival(time, model.spec.name, kind.allowed * alone, leaves))
                time += random.expovariate(rate)
    return sorted(calls, key=lambda call: call.time)


def _is_good(record: Record, calls: Sequence[Arrival]) -> bool:
    return record.outcome is Outcome.ANSWERED and record.latency <= calls[record.request].allowed + 1e-9
