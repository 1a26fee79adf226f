"""`latebind bench ledger`: every request gets exactly one final answer, its own, and a correct one."""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop

from latebind.bench.client import poisson
from latebind.bench.ledger.faults import Fault, Injector
from latebind.bench.ledger.play import Target, play, tables
from latebind.bench.ledger.questions import KINDS, Mix, Protocol, Questions
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import complain, console, progress, reporting, save, show_tables
from latebind.cli.options import JsonFile, Seed
from latebind.domain.errors import ConfigError
from latebind.heap import settle


def ledger(
    *,
    url: Annotated[
        str | None,
        typer.Option(help="The URL of a running server with these models. Default: one is built and started."),
    ] = None,
    grpc: Annotated[str | None, typer.Option(help="That server's gRPC address, such as 127.0.0.1:8001.")] = None,
    process: Annotated[
        int, typer.Option("--pid", help="The process id of that server, needed for --inject and to read its memory.")
    ] = 0,
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"Use only this model: {', '.join(KINDS)}; may be repeated. Default: all but slow."),
    ] = None,
    protocol: Annotated[
        list[Protocol] | None,
        typer.Option(help="The protocol that clients use; may be repeated. Default: all that the server has."),
    ] = None,
    deadline_ms: Annotated[
        list[float] | None,
        typer.Option(help="A deadline; each request draws one of them; may be repeated. Default: 30, 200, 200, 2000."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many requests to send.")] = 20_000,
    rate: Annotated[float, typer.Option(min=0.1, help="How many requests to send per second.")] = 500.0,
    inject: Annotated[
        list[Fault] | None,
        typer.Option(
            help="A fault to inject: kill -9 the engine, stop it for a second, or reload all models (needs "
            "--manage); may be repeated."
        ),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="How often each fault is injected, at even intervals.")] = 3,
    serve: ServeWords = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Send requests in an open loop and account for each: exactly one final answer, its own, and correct.

    Requests are mixed: models (arithmetic, a chain of stages with a learned cache, a query over both, a sequence
    model), protocols, rows, deadlines, priorities, clients that hang up. All inputs differ, and the correct answer is
    known to the last bit. Latency counts from the time at which a request was due to be sent. Refusals and expired
    deadlines count as answers. The exit code is 1 if anything was lost, duplicated, swapped, wrong or failed; the
    evidence is printed.

    To measure goodput under overload, send requests only to `slow`, at several rates: "right and in time" a second.

    Examples:

    * `latebind bench ledger --requests 500000 --rate 1500`
    * `latebind bench ledger --inject kill --inject reload --times 5`
    * `latebind bench ledger --model slow --deadline-ms 100 --rate 2000`
    """
    with reporting(), tempfile.TemporaryDirectory() as scratch:
        if unknown := set(model or ()) - set(KINDS):
            raise ConfigError(f"there is no model {sorted(unknown)[0]!r}: choose from {', '.join(KINDS)}")
        models = tuple(model or (name for name in KINDS if name != "slow"))
        options = [*(serve or ()), *(["--manage"] if Fault.RELOAD in (inject or ()) else [])]
        with _server(url, grpc, process, Path(scratch), models, options) as target:
            spoken = tuple(one for one in Protocol if one is not Protocol.GRPC or target.grpc)
            if set(protocol or ()) - set(spoken):
                raise ConfigError("the server's address for gRPC is unknown: give --grpc, or install latebind[grpc]")
            if inject and not target.process:
                raise ConfigError("--inject needs --pid with --url: the first process of the server")
            deadlines = tuple(ms / 1e3 for ms in deadline_ms or (30, 200, 200, 2000))
            mix = Mix(models, tuple(protocol or spoken), deadlines=deadlines, seed=seed)
            loaded = tuple(name for name in models if name != "relay")  # a query has nothing to load
            faults = [
                Injector(fault, target.process, target.http, times, loaded, place=place, places=len(inject or ()))
                for place, fault in enumerate(inject or ())
            ]
            console.print(f"{', '.join(mix.models)} over {', '.join(mix.protocols)}, seed {seed}")
            settle()
            with progress("ledger") as on_progress:
                arrivals = poisson(rate, Random(seed))
                played = uvloop.run(
                    play(target, Questions(mix), arrivals, requests, inject=faults, on_progress=on_progress)
                )
        found = tables(played)
        show_tables(found)
    save(json_file, {**found, "evidence": played.ledger.evidence})
    complain(played.ledger.evidence)


def _server(
    url: str | None, grpc: str | None, process: int, folder: Path, models: Sequence[str], options: Sequence[str]
) -> AbstractContextManager[Target]:
    """Return the server at a URL, or start one with models built in `folder`. Raises `ConfigError`."""
    if url is None:
        from latebind.bench.ledger import networks

        return networks.serving(folder, models, options)
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--url {url!r}: give one such as http://127.0.0.1:8000")
    return nullcontext(Target(parts.hostname, parts.port or 80, grpc, process))
