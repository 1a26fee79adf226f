"""The parts of the benchmark: all planners at every deadline of the sweep, with the same requests each time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from latebind.bench.rounds import Progress, in_parallel
from research.gati.queries.loaded import LoadedResult, LoadedTask, run_loaded
from research.gati.queries.sides import Side, sides
from research.gati.queries.simulated import Result, Task, run
from research.gati.queries.traffic import Traffic

FIRST, LAST = 0.060, 0.200  # seconds: the sweep of figures 11 and 12
TIGHT, FINE = 0.100, 0.005  # seconds: deadlines up to which the paper finds most to be gained, and how far apart

LOADED = (0.080, 0.100, 0.140)  # seconds: deadlines under load

Found = Mapping[float, Mapping[Side, Result]]  # by deadline and side
FoundLoaded = Mapping[tuple[float, float], Mapping[Side, LoadedResult]]  # by load, deadline and side


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played, and on what; `prices` are of the own planner, `processes` 0: one for each core."""

    deadlines: tuple[float, ...]
    prices: tuple[float, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    requests: int = 20_000
    loads: tuple[float, ...] = (0.3, 0.6, 0.9)
    loaded_requests: int = 4000
    seed: int = 0
    processes: int = 0


def sweep(step: float, last: float = LAST) -> tuple[float, ...]:
    """Return the deadlines of the sweep, so far apart."""
    return tuple(round(FIRST + step * i, 6) for i in range(int((last - FIRST) / step + 1e-6) + 1))


def tight() -> tuple[float, ...]:
    """Return the tight deadlines."""
    return sweep(FINE, TIGHT)


def play(plan: Plan, progress: Progress) -> Found:
    """Play all."""
    everybody = sides(plan.prices)
    tasks = [
        Task(side, deadline, plan.traffic, plan.requests, plan.seed)
        for deadline in plan.deadlines
        for side in everybody
    ]
    results = iter(in_parallel(run, tasks, name=_named, progress=progress, processes=plan.processes))
    return {deadline: {side: next(results) for side in everybody} for deadline in plan.deadlines}


def play_loaded(plan: Plan, progress: Progress) -> FoundLoaded:
    """Play baselines and those who replan under each load, with a few deadlines."""
    some = [side for side in sides(plan.prices) if not side.caches or side.planner.replan]
    cells = [(load, deadline) for load in plan.loads for deadline in LOADED]
    tasks = [
        LoadedTask(side, deadline, load, plan.traffic, plan.loaded_requests, plan.seed)
        for load, deadline in cells
        for side in some
    ]
    results = iter(in_parallel(run_loaded, tasks, name=_named, progress=progress, processes=plan.processes))
    return {cell: {side: next(results) for side in some} for cell in cells}


def _named(task: Task | LoadedTask) -> str:
    return f"{task.deadline * 1e3:g} ms"
