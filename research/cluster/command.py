"""`python -m research cluster` and `ray`."""

import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import ServeWords, Trace
from latebind.cli.console import console, reporting
from latebind.cli.options import Processes, Seed
from latebind.domain.errors import ConfigError
from latebind.planning.runs import playing
from research.cluster import ray as application
from research.cluster.agreement import compared
from research.cluster.placement import Scene, asked, contest
from research.cluster.report import contest_figure, gain_rows, side_rows
from research.evaluation import Floats, Found, Output, Seeds, evaluate
from research.mcache.traces import services_of

SHARES = (0.75, 1.0, 1.5, 2.0, 4.0)
SERVICES = 386  # that are drawn: as many as HTTP and timers call in a sample of 500 of the trace
MODELS_EACH = 10  # models for each machine


def cluster(
    *,
    trace: Trace = None,
    machines: Annotated[int, Option(min=2, help="How many machines there are; ten models for each.")] = 20,
    memory: Annotated[Floats, Option(help="Of all machines, over what models take; may be repeated.")] = None,
    load: Annotated[float, Option(help="The share of the machines' time that requests take singly.")] = 0.5,
    minutes: Annotated[int, Option(help="How many minutes of the trace to play; 0: all.")] = 0,
    seeds: Seeds = 5,
    processes: Processes = 0,
    output: Output,
) -> None:
    """Compare placement by importance and `late` memories with the usual ways on a simulated cluster.

    A whole trace is played and its second half counts, so that placement only sees the past. Ours (placement by
    importance, `late` memories) is compared with what is usual (random, least-loaded and two-choices routing, with
    LRU), and with random homes and LRU behind our own router. All get the same requests, each with or without shedding,
    whichever is better for it. The measure is the best of the usual ways at each share of memory; a table shows all.

    Some thousand requests a second and core are simulated; --machines, --minutes, --memory and --seeds say how many
    there are. Without --trace, counts are drawn with rates as in the trace.

    Example: `python -m research cluster --trace invocations_per_function_md.anon.d01.csv --minutes 240 --seeds 3`
    """
    with reporting():
        for share in memory or ():
            if not share > 0:
                raise ConfigError(f"--memory {share:g} is no memory: give how many times all models fit, more than 0")
        scene = Scene(machines, MODELS_EACH * machines, load, seeds, minutes)
        services = services_of(trace, SERVICES)
        question = asked(services, scene)

        def placement(on_progress: Progress) -> Found:
            with playing(question, on_progress, processes) as runs:
                found = contest(question, runs, tuple(sorted(memory or SHARES)), machines)
            tables = {"ours and the best of the others": gain_rows(found), "everybody, in time": side_rows(found)}
            return Found(tables, lambda: [contest_figure(found)])

        evaluate({"placement": placement}, output, {"services": len(services)})


def ray(
    *,
    requests: Annotated[int, Option(min=1, help="How many requests to send.")] = 50_000,
    rate: Annotated[float, Option(min=0.1, help="How many requests to send in a second.")] = 150.0,
    replicas: Annotated[int, Option(min=1, help="How many replicas there are.")] = 2,
    times: Annotated[int, Option(min=1, help="How often a replica is killed.")] = 3,
    serve: ServeWords = None,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Kill replicas of `latebind serve --on ray` on this machine, under load. Needs latebind\\[ray,bench].

    It asks arithmetic, a chain of stages with a learned cache, a query over both and a sequence model, over
    HTTP and gRPC; every answer is checked to the last bit. Exit code 1 where anything was lost, doubled, swapped, wrong
    or failed, or a killed replica took 10 s to replace.

    Example: `python -m research ray --requests 5000 --times 1`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        folder, options = Path(scratch), list(serve or ())

        def ledger(on_progress: Progress) -> Found:
            killing = application.Killing(requests, rate, replicas, times)
            return application.ledger(folder / "ledger", killing, on_progress, seed=seed, options=options)

        evaluate({"ledger": ledger}, output)


def samples(
    *,
    seeds: Annotated[int, Option(min=1, help="How many clusters are drawn.")] = 20,
    first: Annotated[int, Option(help="The first seed, to go on with an earlier run.")] = 0,
    share: Annotated[float, Option(min=0.01, max=0.5, help="The share of a cluster in a sample.")] = 0.5,
    processes: Processes = 0,
) -> None:
    """Compare how many machines samples of a cluster say that it needs with the simulation of all of it.

    Each seed draws 200 models and their traffic, which some twenty machines serve. It counts whether the number found
    by the whole simulation is in the 95 % interval that `latebind plan` prints of its samples.
    """
    with reporting():
        agree = 0
        for seed in range(first, first + seeds):
            one = compared(seed, share, processes)
            agree += one.agrees
            console.print(
                f"seed {seed}: whole {one.whole} machines, sampled {one.estimate.machines} "
                f"[{one.estimate.low}, {one.estimate.high}] of {one.estimate.samples} samples: "
                f"{'agrees' if one.agrees else 'DIFFERS'}",
                highlight=False,
            )
        console.print(f"{agree} of {seeds} seeds agree")
