"""`latebind bench ledger`: every request gets exactly one final answer, its own, and right."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from latebind.bench.ledger import overload as overload_bench
from latebind.bench.ledger import own, report
from latebind.bench.ledger.arrivals import poisson, traced
from latebind.bench.ledger.inject import Fault, Injector
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.questions import KINDS, Mix, Protocol, Questions
from latebind.bench.residency.azure import read_trace
from latebind.cli.bench.options import Page, Seed, ServeWords
from latebind.cli.console import JsonFile, console, errors, progress, reporting, save, show
from latebind.domain.errors import ConfigError
from latebind.heap import settle

MIXED = ("affine", "chain", "relay", "words")


def ledger(
    url: Annotated[
        str | None, typer.Option(help="Ask this server, which serves the models. Default: one is made and started.")
    ] = None,
    grpc: Annotated[str | None, typer.Option(help="Where that server speaks gRPC, as 127.0.0.1:8001.")] = None,
    process: Annotated[int, typer.Option("--pid", help="Its first process, for --inject and to see its memory.")] = 0,
    requests: Annotated[int, typer.Option(min=1, help="How many to send.")] = 20_000,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 500.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="As uneven by minutes as this day of the Azure Functions trace, CSV or .npz."),
    ] = None,
    minute: Annotated[float, typer.Option(min=0.01, help="Seconds that a minute of the trace lasts here.")] = 1.0,
    model: Annotated[
        list[str] | None, typer.Option(help=f"Ask only {', '.join(KINDS)}; may be repeated. Default: all but slow.")
    ] = None,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="May be repeated. Default: all it speaks.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=16, help="Rows of the largest call.")] = 8,
    deadline_ms: Annotated[
        list[float] | None, typer.Option(help="Deadlines, one is drawn; may be repeated. Default: 30, 200, 200, 2000.")
    ] = None,
    leave: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of clients that hang up after sending.")] = 0.04,
    break_off: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share that hang up within the body.")] = 0.02,
    inject: Annotated[
        list[Fault] | None,
        typer.Option(
            help="kill -9 the engine, stop it for a second, or reload all models (needs --manage); may be repeated."
        ),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="How often each fault is put in, evenly.")] = 3,
    overload: Annotated[
        float | None, typer.Option(min=1.0, help="Instead: find the peak goodput, then ask for so many times as much.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of a step to that peak.")] = 4.0,
    serve: ServeWords = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Ask a server in an open loop, and account for every request: exactly one final answer, its own, and right.

    Requests are mixed: models (arithmetic, a chain of stages with a learned cache, a query over both, a sequence
    model), protocols, rows, deadlines, priorities, clients that hang up. Inputs are unlike each other, and what is
    right is known to the last bit. Latency counts from when a request was to be sent. Refusals and expired deadlines
    are answers. Exit code 1 where anything was lost, doubled, swapped, wrong or failed, with the evidence.

    Examples:

    * `latebind bench ledger --requests 500000 --rate 1500`
    * `latebind bench ledger --inject kill --inject reload --times 5`
    * `latebind bench ledger --overload 5`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        slow = overload is not None
        models = tuple(model or (("slow",) if slow else MIXED))
        unknown = set(models) - set(KINDS)
        if unknown:
            raise ConfigError(f"there is no model {sorted(unknown)[0]!r}: choose from {', '.join(KINDS)}")
        options = [*(serve or ()), *(["--manage"] if Fault.RELOAD in (inject or ()) else [])]
        with _target(url, grpc, process, Path(scratch), models, options) as target:
            mix = Mix(
                models=models,
                protocols=_spoken(target, protocol),
                largest=1 if slow else rows,
                deadlines=tuple(ms / 1e3 for ms in deadline_ms or ((100,) if slow else (30, 200, 200, 2000))),
                leave=leave,
                break_off=break_off,
                seed=seed,
            )
            console.print(f"{', '.join(mix.models)} over {', '.join(mix.protocols)}, seed {seed}")
            if overload is not None:
                bad, played, tables = _overload(target, mix, overload, seconds)
            else:
                injectors = _injectors(target, inject or (), times, mix)
                arrivals = _arrivals(trace, rate, minute, seed)
                bad, played, tables = _play(target, mix, arrivals, requests, injectors)
        for title, found in tables.items():
            show(title, found)
        if page is not None:
            from latebind.bench.ledger.plots import figures
            from latebind.bench.page import write_plots

            write_plots(page, "The ledger", "What became of every request.", list(tables.values()), figures(played))
    save(json_file, {**tables, "evidence": played.ledger.evidence, "problems": bad})
    for line in bad:
        errors.print(line, highlight=False, markup=False, soft_wrap=True)
    if bad:
        raise typer.Exit(1)


Found = tuple[list[str], Played, dict[str, report.Rows]]


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


def _run(work: Any) -> Any:
    import uvloop

    settle()
    return uvloop.run(work) if asyncio.iscoroutine(work) else work


def _target(
    url: str | None, grpc: str | None, process: int, folder: Path, models: Sequence[str], options: Sequence[str]
) -> AbstractContextManager[Target]:
    if url is None:
        return own.serving(folder, models, options)
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--url {url!r}: give one as http://127.0.0.1:8000")
    return nullcontext(Target(parts.hostname, parts.port or 80, grpc, process))


def _spoken(target: Target, wanted: Sequence[Protocol] | None) -> tuple[Protocol, ...]:
    spoken = tuple(one for one in Protocol if one is not Protocol.GRPC or target.grpc)
    missing = set(wanted or ()) - set(spoken)
    if missing:
        raise ConfigError("no gRPC is known of: give --grpc with --url, or install latebind[grpc]")
    return tuple(wanted or spoken)


def _injectors(target: Target, faults: Sequence[Fault], times: int, mix: Mix) -> list[Injector]:
    if faults and not target.process:
        raise ConfigError("--inject needs --pid with --url: the first process of the server")
    models = tuple(model for model in mix.models if model != "relay")
    return [
        Injector(fault, target.process, target.http, times, models, place=place, places=len(faults))
        for place, fault in enumerate(faults)
    ]


def _arrivals(trace: Path | None, rate: float, minute: float, seed: int) -> Iterator[float]:
    random = Random(seed)
    return poisson(rate, random) if trace is None else traced(read_trace(trace), rate, minute, random)
