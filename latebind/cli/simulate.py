"""`latebind simulate`: the scheduler that serves, on a virtual clock with measured costs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from latebind.batching import POLICIES
from latebind.batching.estimate import Estimate
from latebind.cli.console import JsonFile, console, milliseconds, percent, progress, reporting, save, show
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import EventLog
from latebind.learned.stored import read_caches, with_caches
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.report import Summary, summarise
from latebind.simulation.workloads import Arrival, poisson

SHARES_OF_CAPACITY = (0.25, 0.5, 0.75, 0.9, 1.1)


def simulate(
    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")],
    model: Annotated[str, typer.Option(help="Which model of the folder; not needed if there is one.")] = "",
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests a second, Poisson; may be repeated. Default: 25 to 110 % of serial capacity."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(POLICIES)}; may be repeated. Default: serial, graph, lazy+, late."),
    ] = None,
    window_ms: Annotated[float, typer.Option(help="How long graph batching holds a batch back.")] = 0.0,
    max_batch: Annotated[int, typer.Option(help="The largest batch; 0 is what the model was built for.")] = 0,
    workers: Annotated[int, typer.Option(help="Workers that run at once.")] = 1,
    exits: Annotated[bool, typer.Option(help="Whether learned caches may answer early.")] = True,
    requests: Annotated[int, typer.Option(help="Requests for each load.")] = 20_000,
    deadline_ms: Annotated[float, typer.Option(help="How long an answer may take.")] = 100.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and exits.")] = 0,
    event_log: Annotated[Path | None, typer.Option(help="Write events and actions of the last run to FILE.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate Poisson arrivals at a model with the scheduler that serves, on its measured costs.

    Nothing is run: stages take the seconds that `latebind build` measured and requests leave at the measured hit
    rates.

    Example: `latebind simulate models --model resnet56 --rate 100 --rate 300 --policy graph`
    """
    with reporting(), progress("simulating") as tell:
        if requests < 1 or deadline_ms <= 0 or min(rate or [1.0]) <= 0:
            raise ConfigError("--requests must be 1 or more, --deadline-ms and every --rate above 0")
        served = _served(repository, model, exits)
        # Answers are as long as those in the profile; inputs are taken to be as long as their answers.
        lengths = [(steps, steps) for steps in served.costs.output_steps]
        capacity = workers * _serial_capacity(served, lengths)
        rates = rate or [share * capacity for share in SHARES_OF_CAPACITY]
        cells = [(name, at) for name in policy or ["serial", "graph", "lazy+", "late"] for at in rates]
        results: list[tuple[str, float, Summary]] = []
        for number, (name, at) in enumerate(cells):
            tell(f"{name}, {at:.0f}/s", number / len(cells))
            config = SchedulerConfig((served,), workers, PolicyConfig(name, max_batch, window_ms / 1e3))
            arrivals = poisson(
                served, rate=at, requests=requests, allowed=deadline_ms / 1e3, random=Random(seed), lengths=lengths
            )
            last = number + 1 == len(cells)
            records = _play(config, arrivals, event_log if last else None)
            results.append((name, at, summarise(records, allowed=deadline_ms / 1e3)))
    show(
        f"{served.spec.name}: {requests} requests a load, deadline {deadline_ms:g} ms, seed {seed}",
        [_row(name, at, summary) for name, at, summary in results],
    )
    console.print(f"serial capacity at full depth: {capacity:.0f} requests a second")
    save(json_file, [{"policy": name, "rate": at, **asdict(summary)} for name, at, summary in results])


def _play(config: SchedulerConfig, arrivals: Iterable[Arrival], event_log: Path | None) -> list[Record]:
    """Run the simulation, which is written down where a file is named."""
    if event_log is None:
        return Simulator(config).run(arrivals)
    with event_log.open("wb") as file:
        return Simulator(config, log=EventLog(file, config)).run(arrivals)


def _serial_capacity(served: ServedModel, lengths: Sequence[tuple[int, int]]) -> float:
    """Return how many requests of these lengths a worker answers in a second, one by one, with nobody leaving early."""
    estimate = Estimate(served.spec, served.costs)
    return len(lengths) / sum(estimate.whole(1, *steps) for steps in lengths)


def _served(repository: Path, model: str, exits: bool) -> ServedModel:
    """Read what the scheduler must know of one model; several to choose from is an error."""
    paths = find_models(repository, [model] if model else None)
    if len(paths) > 1:
        raise ConfigError(f"{repository} holds {len(paths)} models: choose one with --model")
    directory = ModelDirectory.open(paths[0])
    spec, costs = with_caches(*read_spec_and_costs(directory), read_caches(directory) if exits else None)
    return ServedModel(spec, costs, max_queued=1_000_000)


def _row(policy: str, rate: float, summary: Summary) -> dict[str, object]:
    return {
        "policy": policy,
        "offered/s": f"{rate:.0f}",
        "answered/s": f"{summary.throughput:.0f}",
        "mean ms": milliseconds(summary.mean),
        "p50 ms": milliseconds(summary.p50),
        "p99 ms": milliseconds(summary.p99),
        "in time": percent(summary.in_time / summary.requests),
        "left at": "  ".join(f"{stage}: {percent(share)}" for stage, share in summary.left_at.items()),
    }
