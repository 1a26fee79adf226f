"""`latebind simulate` and `latebind replay`: the server's scheduler on a virtual clock, or on an event log."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from latebind.batching.costs import Estimate
from latebind.batching.policy import POLICIES
from latebind.cli.console import Row, console, errors, milliseconds, percent, progress, reporting, save, show
from latebind.cli.options import JsonFile, Seed
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import EventLog, read_log
from latebind.learned.metadata import read_caches, with_caches
from latebind.program.metadata import read_spec_and_costs
from latebind.queries.scheduler import replayed
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Simulator, Summary, summarize
from latebind.simulation.lengths import (
    HOW,
    PADS_LITTLE,
    Rows,
    by_quarter,
    describe_rows,
    read_rows,
    why_padded,
    with_rows,
)
from latebind.simulation.workloads import poisson

SHARES_OF_CAPACITY = (0.25, 0.5, 0.75, 0.9, 1.1)
DEFAULT_POLICIES = ("graph", "lazy+", "late")


def simulate(
    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")],
    *,
    model: Annotated[
        str, typer.Option(help="Which model of the folder to simulate; needed only if there are several.")
    ] = "",
    exits: Annotated[bool, typer.Option(help="Let learned caches answer early, at their measured hit rates.")] = True,
    floor: Annotated[
        float, typer.Option(help="The lowest fidelity, as in `latebind serve`; 1: fidelity is fixed.")
    ] = 1.0,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Requests a second, at Poisson times; may be repeated. Default: 25, 50, 75, 90 and 110 % of what the "
            "workers answer one request at a time."
        ),
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            help=f"The lengths of rows, if the model has named dimensions or reads sequences: {HOW}. Default: from "
            "the shortest to the longest that the model allows, each octave equally often; for sequences, those of the "
            "data that the model was built with."
        ),
    ] = "",
    requests: Annotated[int, typer.Option(help="How many requests to simulate at each rate.")] = 20_000,
    deadline_ms: Annotated[
        float, typer.Option(help="The deadline of every request, in milliseconds after its arrival.")
    ] = 100.0,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A batching policy: {', '.join(POLICIES)}, or package.module:Class; may be repeated. Default: these."
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="The largest batch; 0: what the model was built for.")] = 0,
    workers: Annotated[int, typer.Option(help="Workers that run at once.")] = 1,
    event_log: Annotated[
        Path | None,
        typer.Option(help="Write the events and actions of the last simulation to FILE, for `latebind replay`."),
    ] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Simulate the scheduler of the server under Poisson traffic, with the costs that were measured for a model.

    No network is run: every stage takes the time that `latebind build` measured, and requests leave early at the
    measured hit rates. The table compares policies by rate: throughput, latency, the share of requests answered
    within the deadline, and the stages at which they left. If rows differ in length, it also shows the share in time
    for each quartile of the lengths, shortest first, and the ratio of the lengths that were run to their own: above 1,
    the rest is padding. With --floor it shows the fidelity that requests were promised.

    Examples:

    * `latebind simulate models --model resnet56 --rate 100 --rate 300 --policy graph`
    * `latebind simulate models --model text --lengths 24~0.8 --rate 50`
    """
    with reporting(), progress("simulating") as on_progress:
        if requests < 1 or not deadline_ms > 0 or not all(one > 0 for one in rate or ()):
            raise ConfigError("--requests must be 1 or more, --deadline-ms and every --rate above 0")
        paths = find_models(repository, [model] if model else None)
        if len(paths) > 1:
            raise ConfigError(f"{repository} holds {len(paths)} models: choose one with --model")
        directory = ModelDirectory.open(paths[0])
        caches = read_caches(directory) if exits else None
        if not 0.0 < floor <= 1.0:
            raise ConfigError(f"--floor is {floor:g}: give a share above 0 and up to 1")
        if floor < 1.0 and (caches is None or not caches.lookups):
            raise ConfigError("--floor needs learned caches, and this model has none: leave it out")
        spec, costs = with_caches(*read_spec_and_costs(directory), caches, floor=floor)
        served = ServedModel(spec, costs, max_queued=1_000_000)
        estimate, allowed, rows = Estimate(served.spec, served.costs), deadline_ms / 1e3, _rows(served, lengths)
        # Answers are as long as those in the profile; inputs are taken to be as long as their answers.
        answers = [(steps, steps) for steps in served.costs.output_steps]
        pairs = [(length, estimate.mean_outputs) for length, _ in rows] or answers
        capacity = workers * len(pairs) / sum(estimate.whole(1, *steps) for steps in pairs)
        rates = rate or [share * capacity for share in SHARES_OF_CAPACITY]
        cells = [(name, each) for name in policy or DEFAULT_POLICIES for each in rates]
        results: list[tuple[str, float, Summary]] = []
        for number, (name, each) in enumerate(cells):
            on_progress(f"{name}, {each:.0f}/s", number / len(cells))
            config = SchedulerConfig((served,), workers, PolicyConfig(name, max_batch))
            # The requests are the same for every policy.
            arrivals = list(
                poisson(served, rate=each, requests=requests, allowed=allowed, random=Random(seed), lengths=answers)
            )
            if rows:
                arrivals = list(with_rows(arrivals, rows, Random(f"{seed} lengths")))
            last = event_log if number + 1 == len(cells) else None
            with last.open("wb") if last else nullcontext() as file:
                simulator = Simulator(config, log=EventLog(file, config) if file else None)
                records = simulator.run(arrivals)
            summary = summarize(records, allowed=allowed)
            if rows:
                figures = simulator.metrics.snapshot()["models"][spec.name]
                quarters = by_quarter(records, [one.inputs for one in arrivals], allowed)
                padding = figures["padded_lengths"] / max(1, figures["run_lengths"])
                summary = replace(summary, quarters=quarters, padding=padding)
            if costs.levels:
                summary = replace(summary, promised=simulator.metrics.snapshot()["models"][spec.name]["promised"])
            results.append((name, each, summary))
    title = f"{served.spec.name}: {requests} requests a load, deadline {deadline_ms:g} ms, seed {seed}"
    title += f", {describe_rows(rows)}" if rows else ""
    show(title, [_row(name, each, summary) for name, each, summary in results])
    console.print(f"serial capacity at full depth: {capacity:.0f} requests a second")
    if any(summary.padding > PADS_LITTLE for _, _, summary in results):
        reason = why_padded(served.costs, [length for length, _ in rows], max_batch or spec.max_batch)
        console.print(f"why rows are padded: {reason}", highlight=False)
    save(json_file, [{"policy": name, "rate": each, **asdict(summary)} for name, each, summary in results])


def _rows(served: ServedModel, lengths: str) -> Rows:
    """Return the rows to draw from; none for a model whose rows all have one size, or as many as their answers."""
    spec = served.spec
    if not lengths and (spec.kinds or not spec.dims):
        return ()
    if not spec.dims:
        raise ConfigError(f"the rows of {spec.name} are all of one size: leave out --lengths")
    return read_rows(lengths, spec.dims, spec.name)


def _row(policy: str, rate: float, summary: Summary) -> Row:
    row: Row = {
        "policy": policy,
        "offered/s": f"{rate:.0f}",
        "answered/s": f"{summary.throughput:.0f}",
        "mean ms": milliseconds(summary.mean),
        "p50 ms": milliseconds(summary.p50),
        "p99 ms": milliseconds(summary.p99),
        "in time": percent(summary.in_time / summary.requests),
        "left at": "  ".join(f"{stage}: {percent(share)}" for stage, share in summary.left_at.items()),
    }
    if summary.promised:
        started = sum(summary.promised.values())
        shares = sorted(summary.promised.items(), key=lambda one: -float(one[0]))
        row["promised"] = "  ".join(f"{fidelity}: {percent(count / started)}" for fidelity, count in shares)
    if summary.quarters:
        row["in time, shortest to longest"] = " ".join(f"{share:.2f}" for share in summary.quarters)
        row["lengths run"] = f"{summary.padding:.2f}"
    return row


def replay(log: Annotated[Path, typer.Argument(help="A file written by `latebind serve --event-log`.")]) -> None:
    """Replay a log of events with a new scheduler and compare its actions, one by one.

    Exit code 0 if every action is the same, 1 at the first that is not.

    Example: `latebind replay events.jsonl`
    """
    with reporting():
        if not log.is_file():
            raise ConfigError(f"{log} is not a file: write one with `latebind serve --event-log {log}`")
        with log.open("rb") as file:
            events, actions, differs = replayed(*read_log(file))
    if differs:
        errors.print(differs)
        raise typer.Exit(1)
    console.print(f"{events} events replayed, {actions} actions, all identical")
