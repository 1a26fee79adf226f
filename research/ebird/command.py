"""`python -m research elastic` and `elastic-live`."""

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Subject
from latebind.cli.console import reporting
from latebind.cli.options import Processes, numbers
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError
from research.contest import Report, Turns
from research.ebird import parts
from research.ebird.policies import GRANULARITIES
from research.evaluation import Conditions, Found, Output, Seconds, Seeds, Words, evaluate
from research.hardware.gpu import SIX, TITAN_RTX
from research.policies import BATCHING
from research.sides import SERIAL, Side, chosen, graph

WINDOWS = (0.005, 0.010, 0.020, 0.030)  # seconds; the best of them is TF-Serving's optimal wait (Ebird, section III)
LOADS, DEADLINE = (0.1, 0.25, 0.5, 0.75, 1.0, 1.2), (10.0,)


class Kind(StrEnum):
    """The role of a live side; `BASELINE` is what the unit of load is taken from."""

    NO_WAIT = "no wait"
    OPTIMAL_WAIT = "optimal wait"
    ELASTIC = "elastic"
    LATE = "late"
    BASELINE = "a baseline"


def elastic(
    *,
    network: Annotated[Words, Option(help=f"A network: {', '.join(SIX)}; may be repeated.")] = None,
    seeds: Seeds = 5,
    seconds: Seconds = 10,
    low: Annotated[float, Option(help="The low load of bursts, as a share of the high load.")] = 0.1,
    launch_ms: Annotated[float, Option(help="What batching on the host needs between batches.")] = TITAN_RTX.launch
    * 1e3,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Simulate Ebird's evaluation: six networks on a Titan RTX, batches of 32, 99 % of answers within 200 ms.

    Parts: bursts (figure 8), throughput (9), gaps (throughput by the time between two batches). Searches last
    --seconds.

    Elastic batches (algorithm 1, workers of 1, 1, 2, 4, 8 and 16, a pool of inputs on the GPU) are compared with
    batches made on the host (no window, the best of six windows, padded), and with batches without a window that use
    the pool, on one worker or on 2 or 4 of any size, whichever is better. `late` is shown beside them.

    The high load is what the best window sustains. `research/hardware/gpu.py` says where each figure of the GPU
    comes from and what is assumed; nothing here is measured on a GPU.

    Example: `python -m research elastic --part throughput --network resnet50 --seeds 3`
    """
    with reporting():
        if unknown := [name for name in network or () if name not in SIX]:
            raise ConfigError(f"there is no network {unknown[0]!r}: take some of {', '.join(SIX)}")
        chip = replace(TITAN_RTX, launch=launch_ms / 1e3)
        plan = parts.Plan(tuple(network or SIX), seeds, seconds, low, chip, processes)
        every = (parts.bursts, parts.throughput, parts.gaps)
        evaluate({part.__name__: partial(part, plan) for part in every}, output)


def contenders(cores: int) -> dict[str, Side]:
    """Return all live sides by name, each for an engine on so many cores."""
    shapes = {f"1 x {cores}": (1, cores), f"{cores} x 1": (cores, 1)} if cores > 1 else {"1 x 1": (1, 1)}
    found: list[Side] = []
    for label, (workers, threads) in shapes.items():
        for window in (0.0, *WINDOWS):
            kind = Kind.OPTIMAL_WAIT if window else Kind.NO_WAIT
            name = f"wait {window * 1e3:g} ms, {label}" if window else f"no wait, {label}"
            policy = graph(window=window, shed=True)
            found.append(Side(name, policy, (kind, Kind.BASELINE), workers=workers, threads=threads))
    for kind in (Kind.ELASTIC, Kind.LATE):
        name = f"{kind}, {' '.join(map(str, GRANULARITIES))}"
        found.append(Side(name, PolicyConfig(BATCHING[kind]), (kind,), granularities=GRANULARITIES))
    found.append(Side(f"late, {cores} x 1", PolicyConfig("late"), (Kind.LATE,), workers=cores))
    return {side.label: side for side in found}


def elastic_live(
    subject: Subject,
    *,
    engine_cores: Annotated[str, Option(help="The cores that the engines run on, such as 0,1.")] = "0,1",
    turns: Turns,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare elastic batches (Ebird) with TF-Serving's policies on the live engine, on several cores. Exits are off.

    Loads are multiples of the best baseline's highest throughput. Each baseline takes part twice: with one worker that
    has all cores, and with one worker for each core. All sides refuse and drop requests that cannot be answered within
    the deadline. Where the engines have all cores, the frontend shares one, for all sides alike; --engine-core counts
    for nothing. `--simulated` plays the same on a virtual clock, where a worker has one core.

    Example: `python -m research elastic-live models --model resnet56 --data images.npz --load 0.1 --load 1`
    """
    with reporting():
        cores = numbers("--engine-cores", engine_cores)

        def loads(on_progress: Progress) -> Found:
            sides = {SERIAL: Side(SERIAL, graph(1)), **chosen(contenders(len(cores)), tuple(turns.side or ()))}
            ours = [name for name, side in sides.items() if {Kind.ELASTIC, Kind.LATE} & set(side.kinds)] or [SERIAL]
            report = Report(sides, ours, (Kind.NO_WAIT, Kind.OPTIMAL_WAIT), conditions.seed)
            plan = turns.plan(LOADS, DEADLINE, Kind.BASELINE)
            turns.hold(subject, sides, partial(report.measure, plan), conditions, on_progress, cores=cores)
            return report.found()

        evaluate({"loads": loads}, output)
