"""`latebind simulate`: the scheduler that serves, on a virtual clock with measured costs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from latebind.batching.costs import Estimate
from latebind.batching.policy import POLICIES
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
DEFAULT_POLICIES = ("graph", "lazy+", "late")

Lengths = Sequence[tuple[int, int]]  # of sequences: input and output steps of each request that may be drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The model whose server is simulated."""

    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")]
    model: Annotated[
        str, typer.Option(help="Which model of the folder to simulate; needed only if there are several.")
    ] = ""
    exits: Annotated[bool, typer.Option(help="Let learned caches answer early, at their measured hit rates.")] = True

    def served(self) -> ServedModel:
        """Return what the scheduler must know of the model. Raises `ConfigError` where there are several."""
        paths = find_models(self.repository, [self.model] if self.model else None)
        if len(paths) > 1:
            raise ConfigError(f"{self.repository} holds {len(paths)} models: choose one with --model")
        directory = ModelDirectory.open(paths[0])
        caches = read_caches(directory) if self.exits else None
        spec, costs = with_caches(*read_spec_and_costs(directory), caches)
        return ServedModel(spec, costs, max_queued=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests that come."""

    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Requests a second, at Poisson times; may be repeated. Default: 25, 50, 75, 90 and 110 % of what the "
            "workers answer one request at a time."
        ),
    ] = None
    requests: Annotated[int, typer.Option(help="How many requests to simulate at each rate.")] = 20_000
    deadline_ms: Annotated[
        float, typer.Option(help="The deadline of every request, in milliseconds after its arrival.")
    ] = 100.0
    seed: Annotated[int, typer.Option(help="Seed of the random arrivals and exits.")] = 0

    @property
    def deadline(self) -> float:
        """Seconds from arrival to deadline."""
        return self.deadline_ms / 1e3

    def check(self) -> None:
        """Raise `ConfigError` for numbers that cannot be simulated."""
        if self.requests < 1 or not self.deadline_ms > 0 or not all(rate > 0 for rate in self.rate or ()):
            raise ConfigError("--requests must be 1 or more, --deadline-ms and every --rate above 0")

    def rates(self, capacity: float) -> list[float]:
        """Return the rates to simulate, for workers that answer `capacity` requests a second one by one."""
        return self.rate or [share * capacity for share in SHARES_OF_CAPACITY]

    def arrivals(self, served: ServedModel, rate: float, lengths: Lengths) -> Iterable[Arrival]:
        """Return the requests at one rate, the same for every policy."""
        return poisson(
            served, rate=rate, requests=self.requests, allowed=self.deadline, random=Random(self.seed), lengths=lengths
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The policies to compare, and the workers that they schedule."""

    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A batching policy: {', '.join(POLICIES)}, or package.module:Class; may be repeated. Default: these."
        ),
    ] = None
    window_ms: Annotated[
        float, typer.Option(help="How many milliseconds graph batching waits for a batch to fill before it starts it.")
    ] = 0.0
    max_batch: Annotated[
        int, typer.Option(help="The largest batch to form. Default 0: the largest that the model was built for.")
    ] = 0
    workers: Annotated[int, typer.Option(help="How many workers run stages at the same time.")] = 1

    @property
    def policies(self) -> Sequence[str]:
        """The names of the policies to compare."""
        return self.policy or DEFAULT_POLICIES

    def config(self, served: ServedModel, policy: str) -> SchedulerConfig:
        """Return the scheduler's configuration with one of the policies."""
        return SchedulerConfig((served,), self.workers, PolicyConfig(policy, self.max_batch, self.window_ms / 1e3))


def simulate(
    simulated: Simulated,
    *,
    load: Load,
    scheduling: Scheduling,
    event_log: Annotated[
        Path | None,
        typer.Option(help="Write the events and actions of the last simulation to FILE, for `latebind replay`."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate the scheduler of the server under Poisson traffic, on the costs that were measured for a model.

    No network is run: every stage takes the time that `latebind build` measured for it, and requests leave early at the
    hit rates that it measured. The table compares policies by rate: throughput, latency, the share of requests answered
    within the deadline, and the stages at which they left.

    Example: `latebind simulate models --model resnet56 --rate 100 --rate 300 --policy graph`
    """
    with reporting(), progress("simulating") as tell:
        load.check()
        served = simulated.served()
        # Answers are as long as those in the profile; inputs are taken to be as long as their answers.
        lengths = [(steps, steps) for steps in served.costs.output_steps]
        capacity = scheduling.workers * _serial_capacity(served, lengths)
        cells = [(policy, rate) for policy in scheduling.policies for rate in load.rates(capacity)]
        results: list[tuple[str, float, Summary]] = []
        for number, (policy, rate) in enumerate(cells):
            tell(f"{policy}, {rate:.0f}/s", number / len(cells))
            is_last = number + 1 == len(cells)
            arrivals = load.arrivals(served, rate, lengths)
            records = _play(scheduling.config(served, policy), arrivals, event_log if is_last else None)
            results.append((policy, rate, summarise(records, allowed=load.deadline)))
    show(
        f"{served.spec.name}: {load.requests} requests a load, deadline {load.deadline_ms:g} ms, seed {load.seed}",
        [_row(policy, rate, summary) for policy, rate, summary in results],
    )
    console.print(f"serial capacity at full depth: {capacity:.0f} requests a second")
    save(json_file, [{"policy": policy, "rate": rate, **asdict(summary)} for policy, rate, summary in results])


def _play(config: SchedulerConfig, arrivals: Iterable[Arrival], event_log: Path | None) -> list[Record]:
    """Run one simulation and return what became of its requests; write its events to `event_log` if it is given."""
    if event_log is None:
        return Simulator(config).run(arrivals)
    with event_log.open("wb") as file:
        return Simulator(config, log=EventLog(file, config)).run(arrivals)


def _serial_capacity(served: ServedModel, lengths: Lengths) -> float:
    """Return how many requests of these lengths a worker answers in a second: one at a time, none leaving early."""
    estimate = Estimate(served.spec, served.costs)
    return len(lengths) / sum(estimate.whole(1, *steps) for steps in lengths)


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
