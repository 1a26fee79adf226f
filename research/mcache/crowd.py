"""Simulates the whole scheduler with a clock: loads beside runs, and clients that wait for their answers or do not.

A batch takes as long as its requests do one after another, so that batching gains nothing here.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from latebind.bench.rounds import Progress, in_parallel
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from research.mcache.parts import Plan
from research.mcache.scenes import Scene
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


def crowd(
    plan: Plan, servers: Sequence[Server], shares: Sequence[float], tell: Progress, *, clients: int = CLIENTS
) -> dict[tuple[str, float], dict[Server, list[Crowded]]]:
    """Play every hour to every server; a cell for each half and seed, by workload and share of memory."""
    tasks = [Task(s, share, one, clients) for s in plan.sevens() for share in shares for one in servers]
    found: dict[tuple[str, float], dict[Server, list[Crowded]]] = {}
    for task, cell in zip(
        tasks, in_parallel(play, tasks, name=_named, progress=tell, processes=plan.processes), strict=True
    ):
        by_server = found.setdefault((task.scene.workload, task.share), {})
        by_server.setdefault(task.server, []).append(cell)
    return found


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


def _named(task: Task) -> str:
    return f"{task.server.label}, {task.share:.0%}, {task.scene.workload}, seed {task.scene.seed}"
