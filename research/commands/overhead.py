"""`python -m research scheduler`, `stages`, `boundary` and `flood`: what latebind itself costs."""

from dataclasses import asdict
from typing import Annotated

import typer

from latebind.cli.bench.options import Conditions, Core, DoorCore, Seed, Subject
from latebind.cli.console import JsonFile, Row, console, reporting, save, show
from latebind.program.build import MAX_OVERHEAD, MIN_STAGE_SECONDS
from research.overhead import boundary as boundary_bench
from research.overhead import flood as flood_bench
from research.overhead import many_models, stage_length
from research.overhead import scheduler as scheduler_bench
from research.overhead import stages as stages_bench
from research.policies import BATCHING

NODE_REQUESTS, NODE_SEEDS = 500, 2


def scheduler(
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy to measure; may be repeated. Default: all.")
    ] = None,
    events: Annotated[int, typer.Option(help="How many events each measurement has.")] = 6_000,
    rounds: Annotated[
        int, typer.Option(help="How often each cell of the table is measured; the smallest time counts.")
    ] = 3,
    launch_us: Annotated[
        float, typer.Option(help="Microseconds that a launch costs, as `python -m research boundary` measures it.")
    ] = 30.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure what scheduler and policies cost on one core, and how short stages may be.

    It measures a stage boundary, a decision and many models. Times are CPU time of the thread, which means something on
    a busy machine too, and clock time beside it. Boundaries are those of a model with learned caches behind some of its
    stages, at which no request leaves: the mean of all while no request rests; of these, separately, the boundaries
    without and with a lookup; and those while other requests rest at a stage.
    """
    with reporting():
        speeds = scheduler_bench.run(policies=policy or tuple(BATCHING), events=events, rounds=rounds, seed=seed)
        costs = many_models.run(events=events // 3, rounds=rounds)
        worth = stage_length.run(launch=launch_us * 1e-6, requests=NODE_REQUESTS, seeds=NODE_SEEDS)
    show(
        f"scheduler, {events} events, least of {rounds} rounds, seed {seed}; CPU (by the clock); boundaries of "
        f"{scheduler_bench.STAGES} stages, {len(scheduler_bench.LOOKUPS)} with a lookup, where nobody leaves",
        [_speed_row(speed) for speed in speeds],
    )
    show(
        f"many models, {many_models.BUSY} of which {many_models.WAITING} requests each wait for or run, "
        f"{events // 3} events",
        [_many_row(cost) for cost in costs],
    )
    show(
        f"{stage_length.STAGES} stages under `lazy+`, a launch of {launch_us:g} us: "
        "mean latency as one stage over theirs",
        [_worth_row(one) for one in worth],
    )
    save(json_file, {"speeds": speeds, "models": costs, "worth": worth})


def _speed_row(speed: scheduler_bench.Speed) -> Row:
    return {
        "policy": speed.policy,
        "largest batch": speed.batch,
        "waiting": speed.waiting,
        "events a second": f"{speed.events:,.0f}",
        "boundary us": speed.boundary.microseconds(),
        "without lookup": speed.plain.microseconds(),
        "behind one": speed.lookup.microseconds(),
        "where others rest": speed.beside.microseconds(),
        "decision of it us": speed.decision.microseconds(),
    }


def _many_row(cost: many_models.Cost) -> Row:
    return {
        "policy": cost.policy,
        "memory": "limited" if cost.memory else "no bound",
        "models": cost.models,
        "us an event": f"{cost.event * 1e6:.1f}",
    }


def _worth_row(worth: stage_length.Worth) -> Row:
    ratios = zip(worth.lengths, worth.ratios, strict=True)
    return {
        "learned caches": "at two stages" if worth.exits else "none",
        **{f"{seconds * 1e3:g} ms": f"{ratio:.2f}" for seconds, ratio in ratios},
        "stages lose below ms": "all" if worth.least is None else f"{worth.least * 1e3:.2f}",
    }


def stages(
    network: Annotated[
        list[str] | None,
        typer.Option(help=f"The network to cut: {' or '.join(stages_bench.NETWORKS)}; may be repeated. Default: both."),
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="A backend to measure; may be repeated. Default: eager and openvino.")
    ] = None,
    min_stage_ms: Annotated[
        list[float] | None, typer.Option(help="The least time that a stage takes; repeat it for a sweep.")
    ] = None,
    limit: Annotated[
        bool, typer.Option(help="Let a chain of stages take at most 5 % longer than the uncut model.")
    ] = True,
    runs: Annotated[int, typer.Option(help="How many pairs of runs each ratio is taken from.")] = 100,
    threads: Annotated[int, typer.Option(help="How many threads each side has.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Show where networks can be cut, and measure what a chain of stages costs compared with the uncut network.

    Both sides run alternately, and each ratio is of a pair of runs.

    Example: `python -m research stages --network resnet56 --backend openvino --no-limit --min-stage-ms 0.3`
    """
    with reporting():
        rows = stages_bench.run(
            network or tuple(stages_bench.NETWORKS),
            backend or ("eager", "openvino"),
            minima=[ms / 1e3 for ms in min_stage_ms or [MIN_STAGE_SECONDS * 1e3]],
            max_overhead=MAX_OVERHEAD if limit else None,
            runs=runs,
            threads=threads,
        )
    show(
        f"chain of stages over the uncut model, {runs} pairs, {threads} threads, random weights",
        [_chain_row(row) for row in rows],
    )
    save(json_file, rows)


def _chain_row(row: stages_bench.Row) -> Row:
    return {
        "network": row.network,
        "backend": row.backend,
        "cut points": row.cut_points,
        "min stage ms": f"{row.min_stage_seconds * 1e3:g}",
        "stages": row.stages,
        "batch": row.batch,
        "uncut ms": f"{row.uncut * 1e3:.2f}",
        "chain / uncut": str(row.ratio),
    }


def boundary(
    *,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy to measure; may be repeated. Default: graph and lazy+.")
    ] = None,
    backend: Annotated[str, typer.Option(help="The backend that runs the stages.")] = "openvino",
    requests: Annotated[int, typer.Option(help="Requests of each side.")] = 2000,
    conditions: Conditions,
    json_file: JsonFile = None,
) -> None:
    """Measure what a stage boundary costs in the engine, and how long a stage must be to make that cost small.

    Example: `python -m research boundary`
    """
    with reporting():
        found = boundary_bench.run(
            policies=tuple(policy or ("graph", "lazy+")),
            backend=backend,
            setting=conditions.setting(),
            requests=requests,
        )
    show(
        f"a boundary where nobody waits, joins or leaves; {requests} requests a side, seed {conditions.seed}",
        [
            {
                "policy": one.policy,
                "backend": one.backend,
                "stages": f"{one.stages} against 1",
                "a boundary us": one.microseconds(),
                "CPU us": f"{one.cpu * 1e6:.1f}",
                f"{MAX_OVERHEAD:.0%} of a stage of ms": f"{one.worth(MAX_OVERHEAD) * 1e3:.2f}",
            }
            for one in found
        ],
    )
    console.print(
        f"`latebind build` makes stages of at least {MIN_STAGE_SECONDS * 1e3:g} ms unless --min-stage-ms says otherwise"
    )
    save(json_file, found)


def flood(
    subject: Subject,
    *,
    rounds: Annotated[
        int, typer.Option(help="How many pairs of phases to measure, one without and one with the flood.")
    ] = 5,
    seconds: Annotated[float, typer.Option(help="How many seconds a phase lasts.")] = 3.0,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    json_file: JsonFile = None,
) -> None:
    """Throughput of the engine on its own core while 16 clients flood the door with small requests."""
    with reporting():
        report = flood_bench.run(
            subject.load(), rounds=rounds, seconds=seconds, door_cores=(door_core,), engine_core=engine_core
        )
    show(f"{subject.model}: {rounds} rounds of {seconds:g} s, medians", [asdict(report)])
    save(json_file, report)
