"""`python -m research ray`: what the application on Ray Serve loses, how it scales, what it costs."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench.ledger import report as ledger_report
from latebind.bench.ledger.questions import Mix, Protocol
from latebind.cli.bench.options import Seed, ServeWords
from latebind.cli.console import JsonFile, Rows, complain, console, progress, reporting, save, show_tables
from research.cluster.ray import kill, latency, report, scale

Tables = dict[str, Rows]
Result = tuple[Sequence[str], Tables]  # what was wrong, and tables by their titles


class Part(StrEnum):
    """The parts of the benchmark."""

    LEDGER = "ledger"
    SCALE = "scale"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """The ledger, while replicas are killed."""

    requests: Annotated[int, typer.Option(min=1, help="For ledger: how many requests to send.")] = 50_000
    rate: Annotated[float, typer.Option(min=0.1, help="For ledger: how many requests to send in a second.")] = 150.0
    replicas: Annotated[int, typer.Option(min=1, help="For ledger: how many replicas there are.")] = 2
    times: Annotated[int, typer.Option(min=1, help="For ledger: how often a replica is killed.")] = 3

    def run(self, folder: Path, seed: int, options: list[str]) -> Result:
        """Run the ledger and return what it found."""
        console.print(
            f"{self.requests} requests, {self.rate:g} a second, {self.replicas} replicas, {self.times} killed"
        )
        with progress("ledger") as tell:
            found = kill.run(
                folder,
                Mix(seed=seed),
                requests=self.requests,
                rate=self.rate,
                replicas=self.replicas,
                times=self.times,
                options=options,
                tell=tell,
            )
        tables = {
            "what must never be": ledger_report.fault_rows(found.played),
            "how requests ended": ledger_report.end_rows(found.played),
            "replicas killed": report.kill_rows(found),
            "client and server": ledger_report.client_rows(found.played),
        }
        return report.kill_verdict(found), tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A load that needs more replicas, followed by a low load."""

    high: Annotated[
        float, typer.Option(min=0.1, help="For scale: a rate, in requests a second, that takes two replicas.")
    ] = 200.0
    high_seconds: Annotated[float, typer.Option(min=1.0, help="For scale: how many seconds the high rate lasts.")] = (
        40.0
    )
    low: Annotated[float, typer.Option(min=0.1, help="For scale: the rate afterwards, in requests a second.")] = 4.0
    low_seconds: Annotated[float, typer.Option(min=1.0, help="For scale: how many seconds the low rate lasts.")] = 60.0

    def run(self, folder: Path, seed: int, options: list[str]) -> Result:
        """Load the server and return the number of its replicas over time."""
        often, rarely = f"{self.high:g} requests a second for {self.high_seconds:g} s", f"{self.low:g} for"
        console.print(f"{often}, {rarely} {self.low_seconds:g} s")
        plan = scale.Plan(self.high, self.low, self.high_seconds, self.low_seconds)
        protocols = (Protocol.JSON, Protocol.BINARY)
        mix = Mix(models=("slow",), protocols=protocols, largest=1, deadlines=(0.1,), seed=seed)
        with progress("scale") as tell:
            found = scale.run(folder, mix, plan, options=options, tell=tell)
        tables = {
            "from one replica to two and back": report.scale_summary(found),
            "replicas": report.scale_rows(found),
            "how requests ended": ledger_report.end_rows(found.played),
        }
        return report.scale_verdict(found), tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Single calls, one after another, compared with the stand-alone server."""

    rounds: Annotated[int, typer.Option(min=1, help="For latency: how many rounds to compare.")] = 5
    calls: Annotated[
        int, typer.Option(min=1, help="For latency: how many calls of each kind a round has, on each side.")
    ] = 200

    def run(self, folder: Path, seed: int, options: list[str]) -> Result:
        """Measure the calls and return their latencies. This part cannot fail."""
        console.print(f"{self.rounds} rounds of {self.calls} calls of each kind on each side")
        plan = latency.Plan(rounds=self.rounds, calls=self.calls, seed=seed)
        with progress("latency") as tell:
            found = latency.run(folder, plan, options=options, tell=tell)
        tables = {
            "one call at a time, on Ray over alone": report.latency_rows(found),
            "where the rest goes": report.rest_rows(found),
            "time in processors": report.cpu_rows(found),
        }
        return (), tables


def ray(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to measure. ledger: a replica is killed under load; scale: from one to two replicas and "
            "back; latency: compared with the stand-alone server. May be repeated. Default: all."
        ),
    ] = None,
    killing: Killing,
    scaling: Scaling,
    timing: Timing,
    serve: ServeWords = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Hurt, load and time `latebind serve --on ray` on this machine. Needs latebind\\[ray,bench].

    The ledger asks arithmetic, a chain of stages with a learned cache, a query over both and a sequence model, over
    HTTP and gRPC; every answer is checked to the last bit. Exit code 1 where anything was lost, doubled, swapped, wrong
    or failed, or a killed replica took 10 s to replace.

    Examples:

    * `python -m research ray`
    * `python -m research ray --part ledger --requests 5000 --times 1`
    * `python -m research ray --part latency --rounds 10`
    """
    runs = {Part.LEDGER: killing.run, Part.SCALE: scaling.run, Part.LATENCY: timing.run}
    wanted = tuple(part or Part)
    found: dict[str, Tables] = {}
    bad: list[str] = []
    with reporting(), tempfile.TemporaryDirectory() as folder:
        console.print(f"{', '.join(wanted)}, seed {seed}")
        for one in wanted:
            problems, found[one] = runs[one](Path(folder) / one, seed, list(serve or ()))
            show_tables(found[one])
            bad += problems
    save(json_file, {"seed": seed, **found, "problems": bad})
    complain(bad)
