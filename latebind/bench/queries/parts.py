"""What is played: everybody at every deadline of the sweep, the same requests each time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from latebind.bench.queries.sides import Side
from latebind.bench.queries.simulated import Result, Task, run
from latebind.bench.queries.traffic import Traffic
from latebind.bench.spread import Progress, spread

FIRST, LAST = 0.060, 0.200  # seconds: the sweep of figures 11 and 12

Found = Mapping[float, Mapping[Side, Result]]  # by deadline and side


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played, and on what; `processes` 0: one for each core."""

    deadlines: tuple[float, ...]
    sides: tuple[Side, ...]
    traffic: Traffic = field(default_factory=Traffic)
    requests: int = 20_000
    seed: int = 0
    processes: int = 0


def sweep(step: float) -> tuple[float, ...]:
    """Return the deadlines of the sweep, so far apart."""
    return tuple(round(FIRST + step * i, 6) for i in range(int((LAST - FIRST) / step + 1e-6) + 1))


def play(plan: Plan, progress: Progress) -> Found:
    """Play all."""
    tasks = [
        Task(side, deadline, plan.traffic, plan.requests, plan.seed)
        for deadline in plan.deadlines
        for side in plan.sides
    ]
    results = iter(spread(run, tasks, name=_named, progress=progress, processes=plan.processes))
    return {deadline: {side: next(results) for side in plan.sides} for deadline in plan.deadlines}


def _named(task: Task) -> str:
    return f"{task.deadline * 1e3:g} ms"
