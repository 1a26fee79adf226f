"""Simulates the whole scheduler with a clock: loads beside runs, and clients that wait for their answers or do not.

A batch takes as long as its requests do one after another, so that batching gains nothing here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace

from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from research.evaluation import Found
from research.mcache.play import Plan, Scene
from research.policies import EVICTION

CLIENTS = 32
PATIENCE = 200.0  # seconds; all models together take 74 to load
QUICKEST, SECONDS_A_BYTE = 0.05, 0.15e-9  # of a run: 0.05 to 0.5 s for the seven models, 0.23 on average
NEVER = 1e9  # seconds until requests are due: nobody is shed
WORD = TensorSpec("x", "float32", (1,))


@dataclass(frozen=True, slots=True)
class Server:
    """A server's policies: eviction, order of loads, which requests may begin, and batching."""

    label: str
    residency: ResidencyConfig
    batching: PolicyConfig = field(default_factory=lambda: PolicyConfig("late", shed=False))

    def config(self, footprints: Mapping[str, Footprint], budget: int) -> SchedulerConfig:
        """Return the scheduler's configuration, with one worker."""
        models = tuple(_served(name, footprint) for name, footprint in footprints.items())
        return SchedulerConfig(models, 1, self.batching, residency=replace(self.residency, budget=budget))


def server(label: str, policy: str, *, batching: str = "late", **settings: Any) -> Server:
    """Return a server whose requests wait no longer than `PATIENCE` for a model while others are served."""
    residency = ResidencyConfig(policy=EVICTION[policy], patience=PATIENCE, **settings)
    return Server(label, residency, PolicyConfig(batching, shed=False))


SERVERS = (
    server("lru", "lru"),
    server("iam", "iam"),
    server("late, whole models", "late", stages=False),
    server("late", "late"),
)


@dataclass(frozen=True, slots=True)
class Crowded:
    """The outcome: requests a second, and the mean and longest latency in seconds."""

    throughput: float
    mean: float
    longest: float


@dataclass(frozen=True, slots=True)
class Task:
    """One hour of requests, for one server with a share of the memory, from clients; 0: when they came."""

    scene: Scene
    share: float
    server: Server
    clients: int


def crowd(plan: Plan, servers: Sequence[Server], shares: Sequence[float], clients: int, tell: Progress) -> Found:
    """Play every hour to every server, for so many clients that wait (0: as requests come), in real time."""
    tasks = [Task(s, share, one, clients) for s in plan.sevens() for share in shares for one in servers]
    named = "{0.server.label}, {0.scene.workload}, seed {0.scene.seed}".format
    cells = in_parallel(play, tasks, name=named, progress=tell, processes=plan.processes)
    found: dict[tuple[str, float], dict[Server, list[Crowded]]] = {}
    for task, cell in zip(tasks, cells, strict=True):
        by_server = found.setdefault((task.scene.workload, task.share), {})
        by_server.setdefault(task.server, []).append(cell)
    who = f"{clients} clients, each waits for its answer" if clients else "requests when they come"
    return Found({f"{who}; the bound is {PATIENCE:g} s": crowd_rows(found)})


def play(task: Task) -> Crowded:
    """Play one hour; every request is answered."""
    requests, footprints = task.scene.made()
    budget = round(task.share * sum(footprint.size for footprint in footprints.values()))
    simulator = Simulator(task.server.config(footprints, budget))
    arrivals = [Arrival(r.time, r.model, NEVER, footprints[r.model].stages - 1) for r in requests]
    closed = simulator.run_closed(arrivals, clients=task.clients) if task.clients else None
    return _crowded(simulator.run(arrivals) if closed is None else closed, len(requests))


def _crowded(records: Sequence[Record], requests: int) -> Crowded:
    assert len(records) == requests, "a request was lost"
    assert all(record.outcome is Outcome.ANSWERED for record in records), "a request was not answered"
    latencies = [record.latency for record in records]
    span = max(record.ended for record in records) - min(record.arrived for record in records)
    return Crowded(requests / span, sum(latencies) / requests, max(latencies))


def _served(name: str, footprint: Footprint) -> ServedModel:
    seconds = (QUICKEST + SECONDS_A_BYTE * footprint.size) / footprint.stages
    curve = Curve((1, 2), (seconds, 2 * seconds))
    footprint = dataclasses.replace(footprint, runs=(seconds,) * footprint.stages)
    spec = ModelSpec(name, "1", (WORD,), (WORD,), footprint.stages, 16)
    return ServedModel(spec, ModelCosts((curve,) * footprint.stages), 1 << 30, footprint)


def crowd_rows(found: Mapping[tuple[str, float], Mapping[Server, Sequence[Crowded]]]) -> Rows:
    """Return what clients see of the whole scheduler; throughput and latency against the first server, same hours."""
    rows: Rows = []
    for (workload, share), servers in found.items():
        base = np.array([(one.throughput, one.mean) for one in next(iter(servers.values()))])
        for server, cells in servers.items():
            own = np.array([(one.throughput, one.mean) for one in cells])
            rows.append(
                {
                    "workload": workload,
                    "memory": f"{share:.0%}",
                    "server": server.label,
                    "/s": f"{own[:, 0].mean():.3f}",
                    "times the first": str(ratio_of_means(own[:, 0], base[:, 0])),
                    "mean latency s": f"{own[:, 1].mean():.1f}",
                    "of the first's": str(ratio_of_means(own[:, 1], base[:, 1])),
                    "longest wait s": f"{max(one.longest for one in cells):.0f}",
                }
            )
    return rows
