"""`python -m research elastic` and `elastic-live`."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.console import reporting
from latebind.cli.options import Processes, numbers
from latebind.domain.errors import ConfigError
from research import plots
from research.ebird import live, parts
from research.evaluation import (
    Conditions,
    Found,
    Load,
    Output,
    Rounds,
    Seconds,
    Seeds,
    SideName,
    Subject,
    Words,
    evaluate,
)
from research.hardware.chip import SIX, TITAN_RTX, Sharing


def elastic(
    *,
    network: Annotated[Words, Option(help=f"A network: {', '.join(SIX)}; may be repeated.")] = None,
    seeds: Seeds = 5,
    seconds: Seconds = 10,
    low: Annotated[float, Option(help="The low load of bursts and day, as a share of the high load.")] = 0.1,
    launch_ms: Annotated[float, Option(help="What batching on the host needs between batches.")] = TITAN_RTX.launch
    * 1e3,
    sharing: Annotated[Sharing, Option(help="How runs share the GPU if they want more than all.")] = TITAN_RTX.sharing,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Simulate Ebird's evaluation: six networks on a Titan RTX, batches of 32, 99 % of answers within 200 ms.

    Parts: rising (figure 2), split (6), bursts (8), throughput (9), ablations (each technique of Ebird by itself), day
    (a load that rises and falls), gaps (throughput by the time between two batches). Searches and days last --seconds.

    Elastic batches (algorithm 1, workers of 1, 1, 2, 4, 8 and 16, a pool of inputs on the GPU) are compared with
    batches made on the host (no window, the best of six windows, padded), and with batches without a window that use
    the pool, on one worker or on 2 or 4 of any size, whichever is better. `late` is shown beside them.

    The high load is what the best window sustains. `research/hardware/chip.py` says where each figure of the GPU
    comes from and what is assumed; nothing here is measured on a GPU.

    Example: `python -m research elastic --part throughput --network resnet50 --seeds 3`
    """
    with reporting():
        if unknown := [name for name in network or () if name not in SIX]:
            raise ConfigError(f"there is no network {unknown[0]!r}: take some of {', '.join(SIX)}")
        chip = replace(TITAN_RTX, launch=launch_ms / 1e3, sharing=sharing)
        plan = parts.Plan(tuple(network or SIX), seeds, seconds, low, chip, processes)
        every = (
            parts.rising,
            parts.split,
            parts.bursts,
            parts.throughput,
            parts.ablations,
            parts.day,
            parts.gaps,
        )
        evaluate({part.__name__: partial(part, plan) for part in every}, output)


def elastic_live(
    subject: Subject,
    *,
    load: Load = None,
    target: Annotated[float, Option(help="Late is what takes longer than so many times one request alone.")] = 10.0,
    side: SideName = None,
    engine_cores: Annotated[str, Option(help="The cores that the engines run on, such as 0,1.")] = "0,1",
    rounds: Rounds = 6,
    seconds: Seconds = 2.0,
    conditions: Conditions,
    output: Output,
) -> None:
    """Compare elastic batches (Ebird) with TF-Serving's policies on the live engine, on several cores. Exits are off.

    Loads are multiples of the best baseline's highest throughput. Each baseline takes part twice: with one worker that
    has all cores, and with one worker for each core. Where the engines have all cores, the frontend shares one,
    for all sides alike; --engine-core counts for nothing.

    Example: `python -m research elastic-live models --model resnet56 --data images.npz --load 0.1 --load 1`
    """
    with reporting():
        plan = live.Plan(tuple(load or live.LOADS), target, rounds, seconds, tuple(side or ()))
        asked, cores = subject.load(), numbers("--engine-cores", engine_cores)

        def loads(tell: Progress) -> Found:
            found = live.run(asked, setting=conditions.setting(), cores=cores, plan=plan, progress=tell)
            rows, name = found.rows(), "in time a second"
            tables = {
                f"by load, a multiple of {found.capacity:.0f} a second; late after {found.allowed * 1e3:.1f} ms": rows,
                f"always enough to do, and within the target; {found.limit:.0f} a second fit on the cores "
                f"({found.fits:.0f} by the profile)": found.saturated_rows(),
                "against the best of each kind, chosen by the other rounds": found.judged_rows(),
            }
            return Found(tables, lambda: [plots.curves("Answers in time", rows, by="side", x="load", y=name)])

        evaluate({"loads": loads}, output)
