"""The parts of mCache's evaluation that need no clock: loading time of each policy, one request after another.

Queues, loads beside runs and clients that wait for their replies are in `crowd`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from latebind.bench.rounds import Progress, in_parallel
from latebind.simulation.traces import HTTP, REQUESTS, Pairing, Service
from research.mcache.models import Family, Storage
from research.mcache.scenes import Many, Scene, Seven, hours
from research.mcache.sides import ABLATED, IAM, KNOWN, LATE, LFU, LRU, RATES, WHOLE, Bound, Cell, Side, policy

TABLE_3 = (0.4, 0.6, 0.8)  # shares of the memory that all models take
FIGURE_6 = (0.2, *TABLE_3, 1.0)
FIGURE_8 = (0.4, 0.8)
FEW = (0.2, 0.4)  # of many models
SWEEP = tuple(step / 10 for step in range(1, 11))
TIMER = "timer"


@dataclass(frozen=True, slots=True)
class Case:
    """Sides in a workload with so much memory."""

    workload: str
    share: float


Found = Mapping[Case, Mapping[Side, Sequence[Cell | None]]]  # a cell for each half and seed, in this order


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played: seeds on each half of the trace, workloads, shares of memory, processes (0: all cores).

    Without `shares` each part has those of the paper.
    """

    services: tuple[Service, ...]
    seeds: int = 10
    pairings: tuple[Pairing, ...] = tuple(Pairing)
    shares: tuple[float, ...] = ()
    family: Family = Family.A
    storage: Storage = field(default_factory=Storage)
    requests: int = REQUESTS
    processes: int = 0

    @property
    def execution(self) -> float:
        """Seconds that a request takes beside loading."""
        return self.storage.execution

    def sevens(self) -> list[Scene]:
        """Return an hour for each workload, half and seed."""
        some = hours(self.services, self.seeds, self.requests)
        return [
            Seven(drawn.hour, drawn.half, drawn.seed, pairing, self.family, self.storage, self.requests)
            for pairing in self.pairings
            for drawn in some
        ]

    def many(self, triggers: tuple[str, ...]) -> list[Scene]:
        """Return an hour of many models for each half and seed: hours are not laid over one another."""
        return [
            Many(drawn.hour, drawn.half, drawn.seed, triggers, self.storage, self.requests)
            for drawn in hours(self.services, self.seeds, 1, triggers)
        ]

    def play(self, scenes: Sequence[Scene], sides: Sequence[Side], shares: Sequence[float], tell: Progress) -> Found:
        """Play all sides in all scenes with each share of memory."""
        tasks = [Task(scene, tuple(sides), self.shares or tuple(shares)) for scene in scenes]
        found: dict[Case, dict[Side, list[Cell | None]]] = {}
        for task, cells in zip(
            tasks, in_parallel(play, tasks, name=_named, progress=tell, processes=self.processes), strict=True
        ):
            for (share, side), cell in cells.items():
                by_side = found.setdefault(Case(task.scene.workload, share), {})
                by_side.setdefault(side, []).append(cell)
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """One hour, for all sides."""

    scene: Scene
    sides: tuple[Side, ...]
    shares: tuple[float, ...]


def play(task: Task) -> dict[tuple[float, Side], Cell | None]:
    """Play one hour."""
    requests, footprints = task.scene.made()
    total = sum(footprint.size for footprint in footprints.values())
    return {
        (share, side): side.cell(requests, footprints, round(share * total))
        for share in task.shares
        for side in task.sides
    }


def _named(task: Task) -> str:
    return f"{task.scene.workload}, half {task.scene.half + 1}, seed {task.scene.seed}"


def table(plan: Plan, sides: Sequence[Side], tell: Progress) -> Found:
    """Play all sides (table 3, figures 6, 7, 9 and 10)."""
    return plan.play(plan.sevens(), [LRU, *[side for side in sides if side != LRU]], FIGURE_6, tell)


def distribution(plan: Plan, tell: Progress) -> Found:
    """Play the sides whose distributions are drawn (figure 8)."""
    return plan.play(plan.sevens(), (LRU, IAM, LATE), FIGURE_8, tell)


def ablation(plan: Plan, tell: Progress) -> Found:
    """Play `late` with one of its parts left out at a time."""
    return plan.play(plan.sevens(), ABLATED, TABLE_3, tell)


def known(plan: Plan, tell: Progress) -> Found:
    """Play `late` with some requests that wait and are known; LRU has no use for them."""
    waiting = [
        policy(side.config.policy, f"{side.label}, {count} wait", known=count, stages=side.config.stages)
        for side in (LATE, WHOLE)
        for count in KNOWN
    ]
    return plan.play(plan.sevens(), (LRU, *waiting, Bound.WHOLE, Bound.STREAMING), TABLE_3, tell)


def memory(plan: Plan, tell: Progress) -> Found:
    """Play those whose memory is compared where they load for equally long, with ever more of it."""
    sweep = replace(plan, shares=tuple(sorted({*SWEEP, *plan.shares})))
    return sweep.play(plan.sevens(), (LRU, LFU, IAM, WHOLE, LATE), SWEEP, tell)


def many(plan: Plan, sides: Sequence[Side], tell: Progress) -> Found:
    """Play all sides with a model for each service, including those that timers call if the trace has any."""
    scenes = plan.many((HTTP,))
    if any(service.trigger == TIMER for service in plan.services):
        scenes += plan.many((HTTP, TIMER))
    some = [LRU, *[side for side in sides if side != LRU], Bound.PIECES, Bound.STREAMING]
    return plan.play(scenes, some, FEW, tell)


def bounds(plan: Plan, tell: Progress) -> Found:
    """Play `late`, whole, in pieces and told all rates, beside the least that is possible."""
    return plan.play(plan.sevens(), (LRU, WHOLE, LATE, RATES, *Bound), TABLE_3, tell)
