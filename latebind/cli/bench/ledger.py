"""`latebind bench ledger`: every request gets exactly one final answer, its own, and right."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from latebind.bench.client import poisson
from latebind.bench.ledger import mixed as mixed_bench
from latebind.bench.ledger import overload as overload_bench
from latebind.bench.ledger import own, report
from latebind.bench.ledger.inject import Fault, Injector
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.plots import figures
from latebind.bench.ledger.questions import KINDS, Mix, Protocol, Questions
from latebind.bench.report import write_plots
from latebind.cli.bench.options import Page, Seed, ServeWords
from latebind.cli.console import JsonFile, Rows, complain, console, progress, reporting, save, show_tables
from latebind.domain.errors import ConfigError
from latebind.heap import settle

MIXED = ("affine", "chain", "relay", "words")
SLOW = ("slow",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server to ask."""

    url: Annotated[
        str | None,
        typer.Option(help="The URL of a running server with these models. Default: one is built and started."),
    ] = None
    grpc: Annotated[str | None, typer.Option(help="Where that server speaks gRPC, such as 127.0.0.1:8001.")] = None
    process: Annotated[
        int, typer.Option("--pid", help="The process id of that server, needed for --inject and to read its memory.")
    ] = 0

    def target(self, folder: Path, models: Sequence[str], options: Sequence[str]) -> AbstractContextManager[Target]:
        """Return the server. Without a URL, one is started with models built in `folder`. Raises `ConfigError`."""
        if self.url is None:
            return own.serving(folder, models, options)
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"--url {self.url!r}: give one as http://127.0.0.1:8000")
        return nullcontext(Target(parts.hostname, parts.port or 80, self.grpc, self.process))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The number of requests and their arrival times."""

    requests: Annotated[int, typer.Option(min=1, help="How many requests to send.")] = 20_000
    rate: Annotated[float, typer.Option(min=0.1, help="How many requests to send in a second.")] = 500.0

    def arrivals(self, seed: int) -> Iterator[float]:
        """Yield the times at which requests are sent, in seconds."""
        return poisson(self.rate, Random(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The mix of requests: models, protocols, rows, deadlines, and clients that hang up."""

    model: Annotated[
        list[str] | None,
        typer.Option(help=f"Ask only this model: {', '.join(KINDS)}; may be repeated. Default: all but slow."),
    ] = None
    protocol: Annotated[
        list[Protocol] | None,
        typer.Option(help="The protocol that clients speak; may be repeated. Default: all that the server speaks."),
    ] = None
    rows: Annotated[int, typer.Option(min=1, max=16, help="How many rows the largest call has.")] = 8
    deadline_ms: Annotated[
        list[float] | None,
        typer.Option(help="A deadline; each request draws one of them; may be repeated. Default: 30, 200, 200, 2000."),
    ] = None
    leave: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of clients that hang up after they sent their request.")
    ] = 0.04
    break_off: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of clients that hang up in the middle of the body.")
    ] = 0.02

    def models(self, usual: Sequence[str]) -> tuple[str, ...]:
        """Return the models to ask for, by default the `usual` ones. Raises `ConfigError`."""
        unknown = set(self.model or ()) - set(KINDS)
        if unknown:
            raise ConfigError(f"there is no model {sorted(unknown)[0]!r}: choose from {', '.join(KINDS)}")
        return tuple(self.model or usual)

    def mix(self, target: Target, *, slow: bool, seed: int) -> Mix:
        """Return the mix of requests. To search for the peak, all have one row and deadline. Raises `ConfigError`."""
        return Mix(
            models=self.models(SLOW if slow else MIXED),
            protocols=_spoken(target, self.protocol),
            largest=1 if slow else self.rows,
            deadlines=tuple(ms / 1e3 for ms in self.deadline_ms or ((100,) if slow else (30, 200, 200, 2000))),
            leave=self.leave,
            break_off=self.break_off,
            seed=seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults to cause on the server during the run."""

    inject: Annotated[
        list[Fault] | None,
        typer.Option(
            help="A fault to inject: kill -9 the engine, stop it for a second, or reload all models (needs "
            "--manage); may be repeated."
        ),
    ] = None
    times: Annotated[int, typer.Option(min=1, help="How often each fault is injected, at even intervals.")] = 3

    def options(self) -> list[str]:
        """Return the options of `latebind serve` that the faults need."""
        return ["--manage"] if Fault.RELOAD in (self.inject or ()) else []

    def injectors(self, target: Target, mix: Mix) -> list[Injector]:
        """Return an injector for each fault. Raises `ConfigError`."""
        faults = self.inject or ()
        if faults and not target.process:
            raise ConfigError("--inject needs --pid with --url: the first process of the server")
        models = tuple(model for model in mix.models if model != "relay")
        return [
            Injector(fault, target.process, target.http, self.times, models, place=place, places=len(faults))
            for place, fault in enumerate(faults)
        ]


def ledger(
    *,
    server: Server,
    traffic: Traffic,
    asked: Asked,
    faults: Faults,
    overload: Annotated[
        float | None,
        typer.Option(min=1.0, help="Do this instead: find the peak goodput, then offer this many times as much."),
    ] = None,
    mixed: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            help="Do this instead: find the peak goodput, then offer this multiple of it with near and far deadlines "
            "together, to a server with admission and to one without; may be repeated.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="How many seconds each step of the search for that peak lasts.")
    ] = 4.0,
    serve: ServeWords = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Send requests in an open loop and account for each: exactly one final answer, its own, and correct.

    Requests are mixed: models (arithmetic, a chain of stages with a learned cache, a query over both, a sequence
    model), protocols, rows, deadlines, priorities, clients that hang up. All inputs differ, and the correct answer is
    known to the last bit. Latency counts from the time at which a request was due to be sent. Refusals and expired
    deadlines count as answers. The exit code is 1 if anything was lost, doubled, swapped, wrong or failed; the evidence
    is printed.

    Examples:

    * `latebind bench ledger --requests 500000 --rate 1500`
    * `latebind bench ledger --inject kill --inject reload --times 5`
    * `latebind bench ledger --overload 5`
    * `latebind bench ledger --mixed 0.6 --mixed 0.9`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        slow = overload is not None or bool(mixed)
        options = [*(serve or ()), *faults.options()]
        with server.target(Path(scratch), asked.models(SLOW if slow else MIXED), options) as target:
            mix = asked.mix(target, slow=slow, seed=seed)
            console.print(f"{', '.join(mix.models)} over {', '.join(mix.protocols)}, seed {seed}")
            if mixed:
                bad, played, tables = _mixed(target, server, mix, mixed, seconds, Path(scratch), options)
            elif overload is not None:
                bad, played, tables = _overload(target, mix, overload, seconds)
            else:
                injectors = faults.injectors(target, mix)
                bad, played, tables = _play(target, mix, traffic.arrivals(seed), traffic.requests, injectors)
        show_tables(tables)
        if page is not None:
            write_plots(page, "The ledger", "What became of every request.", list(tables.values()), figures(played))
    save(json_file, {**tables, "evidence": played.ledger.evidence, "problems": bad})
    complain(bad)


Found = tuple[list[str], Played, dict[str, Rows]]


def _play(target: Target, mix: Mix, arrivals: Iterator[float], requests: int, injectors: Sequence[Injector]) -> Found:
    with progress("ledger") as tell:
        played = _run(play(target, Questions(mix), arrivals, requests, inject=injectors, tell=tell))
    tables = {
        "what must never be": report.fault_rows(played),
        "how requests ended": report.end_rows(played),
        "client and server": report.client_rows(played),
        "what was done to the server": report.injected_rows(played),
    }
    return list(played.ledger.evidence), played, {title: rows for title, rows in tables.items() if rows}


def _overload(target: Target, mix: Mix, times: float, seconds: float) -> Found:
    with progress("overload") as tell:
        found = _run(overload_bench.run(target, mix, times=times, seconds=seconds, tell=tell))
    tables = {
        f"goodput within {mix.deadlines[0] * 1e3:g} ms": report.overload_rows(found),
        f"what became of {times:g} times the peak": report.end_rows(found.played),
        "what must never be": report.fault_rows(found.played),
        "client and server": report.client_rows(found.played),
    }
    return [*found.played.ledger.evidence, *report.overload_verdict(found)], found.played, tables


def _mixed(
    target: Target,
    server: Server,
    mix: Mix,
    loads: Sequence[float],
    seconds: float,
    scratch: Path,
    options: Sequence[str],
) -> Found:
    if server.url is not None:
        raise ConfigError("--mixed starts two servers of its own: leave --url out")
    never = scratch / "never.toml"
    never.write_text(mixed_bench.NEVER_REFUSES)
    with (
        progress("mixed deadlines") as tell,
        own.serving(scratch / "free", mix.models, [*options, "--config", str(never)]) as free,
    ):
        found = _run(mixed_bench.run(target, free, mix, loads=loads, seconds=seconds, tell=tell))
    played = found[-1].played
    tables = {
        "refused, and in time with and without admission": mixed_bench.rows(found),
        "what must never be": [
            row for one in found for each in (one.played, one.free) for row in report.fault_rows(each)
        ],
        "client and server": report.client_rows(played),
    }
    evidence = [line for one in found for each in (one.played, one.free) for line in each.ledger.evidence]
    return [*evidence, *mixed_bench.verdict(found)], played, tables


def _run(work: Any) -> Any:
    import uvloop

    settle()
    return uvloop.run(work) if asyncio.iscoroutine(work) else work


def _spoken(target: Target, wanted: Sequence[Protocol] | None) -> tuple[Protocol, ...]:
    spoken = tuple(one for one in Protocol if one is not Protocol.GRPC or target.grpc)
    missing = set(wanted or ()) - set(spoken)
    if missing:
        raise ConfigError("no gRPC is known of: give --grpc with --url, or install latebind[grpc]")
    return tuple(wanted or spoken)
