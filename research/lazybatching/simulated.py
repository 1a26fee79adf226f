"""Policies on the paper's accelerator: sentences, networks, and runs on the virtual clock by network, load and side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from heapq import merge
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress, in_parallel
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.errors import ConfigError
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Lengths, poisson
from research.hardware.networks import NETWORKS
from research.lazybatching.policies import Oracle
from research.policies import BATCHING
from research.sides import Side, alone, graph

LONGEST = 50  # words; longer sentences are cut
DRAWN = 10_000
MEDIAN, SPREAD = 20.0, 0.55  # of words of English news, lognormal
RATIO_SPREAD = 0.2  # of words of a translation over those of its sentence
WINDOWS = (0.005, 0.010, 0.025, 0.050, 0.075, 0.095)  # seconds, those that the paper names among them
SIZES = (8, 16, 32, 64)
LARGEST = 64
WARM_UP = 0.05  # of the requests: the queue is empty when they come
GROWING = 1.5  # times as long in the second half of a run as in the first: a policy that does not keep up


@dataclass(frozen=True, slots=True)
class Sentences:
    """`profiled` are lengths of answers that a policy may know before; requests are drawn from the pairs `asked`.

    `told` says in words where they are from.
    """

    profiled: tuple[int, ...]
    asked: Lengths
    told: str

    @classmethod
    def of(cls, pairs: NDArray[np.int64], source: str) -> "Sentences":
        """Take the first half of `pairs` `(N, 2)` for the profile and the other to ask for."""
        cut = np.clip(pairs, 1, LONGEST)
        half = len(cut) // 2
        over = int((pairs > LONGEST).any(axis=1).sum())
        told = f"{len(cut):,} pairs {source}" + (f", {over:,} of them cut to {LONGEST} words" if over else "")
        return cls(tuple(sorted(cut[:half, 1].tolist())), [(int(a), int(b)) for a, b in cut[half:]], told)


def read_sentences(given: str | None) -> Sentences:
    """Return lengths from an array `(N, 2)` of words in and out, given as `FILE.npz:ARRAY`; None: drawn ones.

    The array may be left out where the file has only one of that shape. Raises `ConfigError` for a file without such
    an array, or with several of which none is named: one of them taken in silence gave figures of another language.
    """
    if given is None:
        random = np.random.default_rng(0)
        words = MEDIAN * np.exp(SPREAD * random.standard_normal(DRAWN))
        translated = words * np.exp(RATIO_SPREAD * random.standard_normal(DRAWN))
        return Sentences.of(np.rint(np.stack([words, translated], axis=1)).astype(np.int64), "drawn like those of news")
    before, colon, after = given.rpartition(":")
    file, name = (before, after) if colon and before.endswith(".npz") else (given, None)
    try:
        with np.load(file) as arrays:
            found = {each: arrays[each] for each in arrays.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no .npz file of lengths: {error}") from None
    pairs = {
        each: array
        for each, array in found.items()
        if array.dtype.kind in "iu" and array.ndim == 2 and array.shape[1] == 2 and len(array) > 1
    }
    wanted = name or (next(iter(pairs)) if len(pairs) == 1 else "")
    if wanted not in pairs:
        there = f"it has {', '.join(sorted(pairs))}" if pairs else "it has none: give words in and words out"
        raise ConfigError(f"name an array (N, 2) of whole numbers of words, as in --lengths {file}:ARRAY; {there}")
    return Sentences.of(pairs[wanted].astype(np.int64), f"of {wanted} in {file}")


@dataclass(frozen=True, slots=True)
class Scene:
    """The networks by name, on LazyBatching's accelerator, or such that are `given`."""

    sentences: Sentences
    given: tuple[ServedModel, ...] = ()

    def served(self, network: str) -> ServedModel:
        """Return the network as a scheduler knows it."""
        found = {one.spec.name: one for one in self.given}
        return found.get(network) or NETWORKS[network]().served(output_steps=self.sentences.profiled)

    def recurrent(self, network: str) -> bool:
        """Return whether it has stages that repeat."""
        return bool(self.served(network).spec.kinds)

    def lengths(self, network: str) -> Lengths:
        """Return tokens in and out, to draw requests from; of a network whose stages all run once, 1 and 1."""
        return self.sentences.asked if self.recurrent(network) else ((1, 1),)

    def capacity(self, network: str) -> float:
        """Return how many requests a second it answers one after another, by profile."""
        return 1.0 / alone(self.served(network), self.lengths(network))


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
    calls = list(merge(*streams, key=lambda arrival: arrival.time))
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
    batches, costs = served.costs.stages[0].curves[0].batches, served.costs
    whole = Curve(batches, tuple(costs.remaining(0, batch) for batch in batches))
    costs = ModelCosts(at_any_length(whole), output_steps=costs.output_steps)
    return replace(served, spec=replace(served.spec, stages=1), costs=costs)


def _latencies(records: Iterable[Record]) -> NDArray[np.float64]:
    found = [record.latency for record in records if record.outcome is Outcome.ANSWERED]
    return np.array(found or [np.inf])


def shedding(side: Side) -> Side:
    """Return the same policy, refusing and dropping requests that cannot be in time."""
    return replace(side, policy=msgspec.structs.replace(side.policy, shed=True))
