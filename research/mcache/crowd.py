"""Clients that each wait for their answer in less memory than the models take: sides and report, and the simulation.

Live engines of the same sides are in `live.py`. Simulated, the whole scheduler runs on a clock, loads beside runs; a
batch takes as long as its requests do one after another, so that batching gains nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from research.evaluation import Found
from research.mcache.play import Plan, Scene
from research.policies import EVICTION

CLIENTS = 32  # as mCache's
PATIENCE = 200.0  # seconds; all models together take 74 to load
AT_ONCE = 1e-6  # seconds: a patience by which every load is overdue, so that the oldest request's model goes first
QUICKEST, SECONDS_A_BYTE = 0.05, 0.15e-9  # of a run: 0.05 to 0.5 s for the seven models, 0.23 on average
NEVER = 1e9  # seconds until requests are due: nobody is shed
WORD = TensorSpec("x", "float32", (1,))
LRU, IN_ORDER, LATE = "lru", "lru, in order", "late"


def sides(patience: float) -> dict[str, ResidencyConfig]:
    """Return all sides by name, in which no request waits longer than `patience` seconds while others are served."""
    return {
        LRU: ResidencyConfig(policy="lru", patience=patience),
        IN_ORDER: ResidencyConfig(policy="lru", patience=AT_ONCE),
        "iam": ResidencyConfig(policy=EVICTION["iam"], patience=patience),
        "late, whole models": ResidencyConfig(policy="late", stages=False, patience=patience),
        LATE: ResidencyConfig(policy="late", patience=patience),
    }


@dataclass(frozen=True, slots=True)
class Crowded:
    """The outcome of one round: answers a second, mean latency and longest wait in seconds, requests without answer."""

    throughput: float
    mean: float
    longest: float
    lost: int = 0


ByPlace = Mapping[str, Mapping[str, Sequence[Crowded]]]  # rounds by workload and memory, and by side


def crowd_rows(found: ByPlace, seed: int = 0) -> Rows:
    """Return what clients see; throughput and latency against LRU, round by round."""
    rows: Rows = []
    for place, by_side in found.items():
        base = by_side.get(LRU)
        for side, rounds in by_side.items():
            through, mean = (np.array([getattr(one, name) for one in rounds]) for name in ("throughput", "mean"))
            row: dict[str, object] = {"memory": place, "side": side, "answers a second": f"{through.mean():.3f}"}
            if base is not None:
                row[f"over {LRU}"] = str(ratio_of_means(through, [one.throughput for one in base], seed=seed))
                row[f"mean / {LRU}"] = str(ratio_of_means(mean, [one.mean for one in base], seed=seed))
            row["mean s"] = f"{mean.mean():.3f}"
            row["longest wait s"] = f"{max(one.longest for one in rounds):.2f}"
            rows.append(row | {"lost": sum(one.lost for one in rounds)})
    return rows


@dataclass(frozen=True, slots=True)
class Task:
    """One hour of requests, for one side with a share of the memory, from so many clients."""

    scene: Scene
    share: float
    side: str
    clients: int


def crowd(plan: Plan, shares: Sequence[float], clients: int, on_progress: Progress) -> Found:
    """Play every hour to every side for so many clients, in real time."""
    tasks = [Task(s, share, one, clients) for s in plan.sevens() for share in shares for one in sides(PATIENCE)]
    named = "{0.side}, {0.scene.workload}, seed {0.scene.seed}".format
    cells = in_parallel(play, tasks, name=named, progress=on_progress, processes=plan.processes)
    found: dict[str, dict[str, list[Crowded]]] = {}
    for task, cell in zip(tasks, cells, strict=True):
        by_side = found.setdefault(f"{task.share:.0%}, {task.scene.workload}", {})
        by_side.setdefault(task.side, []).append(cell)
    return Found({f"{clients} clients, each waits for its answer, for {PATIENCE:g} s at most": crowd_rows(found)})


def play(task: Task) -> Crowded:
    """Play one hour; every request is answered."""
    requests, footprints = task.scene.made()
    budget = round(task.share * sum(footprint.size for footprint in footprints.values()))
    models = tuple(_served(name, footprint) for name, footprint in footprints.items())
    residency = msgspec.structs.replace(sides(PATIENCE)[task.side], budget=budget)
    simulator = Simulator(SchedulerConfig(models, 1, PolicyConfig(shed=False), residency=residency))
    arrivals = [Arrival(r.time, r.model, NEVER, footprints[r.model].stages - 1) for r in requests]
    records = simulator.run_closed(arrivals, clients=task.clients)
    assert len(records) == len(requests), "a request was lost"
    assert all(record.outcome is Outcome.ANSWERED for record in records), "a request was not answered"
    latencies = [record.latency for record in records]
    span = max(record.ended for record in records) - min(record.arrived for record in records)
    return Crowded(len(requests) / span, float(np.mean(latencies)), max(latencies))


def _served(name: str, footprint: Footprint) -> ServedModel:
    seconds = (QUICKEST + SECONDS_A_BYTE * footprint.size) / footprint.stages
    curve = Curve((1, 2), (seconds, 2 * seconds))
    footprint = dataclasses.replace(footprint, runs=(seconds,) * footprint.stages)
    spec = ModelSpec(name, "1", (WORD,), (WORD,), footprint.stages, 16)
    return ServedModel(spec, ModelCosts(at_any_length(curve) * footprint.stages), 1 << 30, footprint)
