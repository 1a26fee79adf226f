"""`latebind bench ledger`: every request gets exactly one final answer, its own, and right."""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop

from latebind.bench.client import poisson
from latebind.bench.ledger import networks, overload, report
from latebind.bench.ledger.faults import Fault, Injector
from latebind.bench.ledger.play import Played, Target, play
from latebind.bench.ledger.questions import KINDS, Mix, Protocol, Questions
from latebind.cli.bench.options import ServeWords
from latebind.cli.console import Rows, complain, console, progress, reporting, save, show_tables
from latebind.cli.options import JsonFile, Seed
from latebind.domain.errors import ConfigError
from latebind.heap import settle

MIXED = ("affine", "chain", "relay", "words")
SLOW = ("slow",)

Found = tuple[list[str], Played, dict[str, Rows]]  # what must not be, what was sent last, and tables by title


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who is asked, and what: models, protocols, deadlines."""

    url: Annotated[
        str | None,
        typer.Option(help="The URL of a running server with these models. Default: one is built and started."),
    ] = None
    grpc: Annotated[str | None, typer.Option(help="Where that server speaks gRPC, such as 127.0.0.1:8001.")] = None
    process: Annotated[
        int, typer.Option("--pid", help="The process id of that server, needed for --inject and to read its memory.")
    ] = 0
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"Ask only this model: {', '.join(KINDS)}; may be repeated. Default: all but slow."),
    ] = None
    protocol: Annotated[
        list[Protocol] | None,
        typer.Option(help="The protocol that clients speak; may be repeated. Default: all that the server speaks."),
    ] = None
    deadline_ms: Annotated[
        list[float] | None,
        typer.Option(help="A deadline; each request draws one of them; may be repeated. Default: 30, 200, 200, 2000."),
    ] = None

    def server(self, folder: Path, models: Sequence[str], options: Sequence[str]) -> AbstractContextManager[Target]:
        """Return the server. Without a URL, one is started with models built in `folder`. Raises `ConfigError`."""
        if self.url is None:
            return networks.serving(folder, models, options)
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"--url {self.url!r}: give one such as http://127.0.0.1:8000")
        return nullcontext(Target(parts.hostname, parts.port or 80, self.grpc, self.process))

    def models(self, usual: Sequence[str]) -> tuple[str, ...]:
        """Return the models to ask for, by default the `usual` ones. Raises `ConfigError`."""
        unknown = set(self.model or ()) - set(KINDS)
        if unknown:
            raise ConfigError(f"there is no model {sorted(unknown)[0]!r}: choose from {', '.join(KINDS)}")
        return tuple(self.model or usual)

    def mix(self, target: Target, *, slow: bool, seed: int) -> Mix:
        """Return the mix of requests. To search for the peak, all have one row and deadline. Raises `ConfigError`."""
        spoken = tuple(one for one in Protocol if one is not Protocol.GRPC or target.grpc)
        if set(self.protocol or ()) - set(spoken):
            raise ConfigError("the server's address for gRPC is unknown: give --grpc, or install latebind[grpc]")
        return Mix(
            models=self.models(SLOW if slow else MIXED),
            protocols=tuple(self.protocol or spoken),
            largest=1 if slow else 8,
            deadlines=tuple(ms / 1e3 for ms in self.deadline_ms or ((100,) if slow else (30, 200, 200, 2000))),
            seed=seed,
        )


def ledger(
    *,
    asked: Asked,
    requests: Annotated[int, typer.Option(min=1, help="How many requests to send.")] = 20_000,
    rate: Annotated[float, typer.Option(min=0.1, help="How many requests to send in a second.")] = 500.0,
    inject: Annotated[
        list[Fault] | None,
        typer.Option(
            help="A fault to inject: kill -9 the engine, stop it for a second, or reload all models (needs "
            "--manage); may be repeated."
        ),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="How often each fault is injected, at even intervals.")] = 3,
    overloaded: Annotated[
        float | None,
        typer.Option(
            "--overload",
            min=1.0,
            help="Do this instead: find the peak goodput, then offer this many times as much.",
        ),
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
        slow = overloaded is not None or bool(mixed)
        options = [*(serve or ()), *(["--manage"] if Fault.RELOAD in (inject or ()) else [])]
        with asked.server(Path(scratch), asked.models(SLOW if slow else MIXED), options) as target:
            mix = asked.mix(target, slow=slow, seed=seed)
            console.print(f"{', '.join(mix.models)} over {', '.join(mix.protocols)}, seed {seed}")
            settle()
            if mixed:
                if asked.url is not None:
                    raise ConfigError("--mixed starts two servers of its own: leave --url out")
                bad, played, tables = _mixed(target, mix, mixed, seconds, Path(scratch), options)
            elif overloaded is not None:
                bad, played, tables = _overload(target, mix, overloaded, seconds)
            else:
                injectors = _injectors(inject or (), times, target, mix)
                with progress("ledger") as tell:
                    arrivals = poisson(rate, Random(seed))
                    played = uvloop.run(play(target, Questions(mix), arrivals, requests, inject=injectors, tell=tell))
                bad, tables = list(played.ledger.evidence), {"how requests ended": report.end_rows(played)}
        if not mixed:
            tables["what must never be"] = report.fault_rows(played)
        tables["client and server"] = report.client_rows(played)
        tables["what was done to the server"] = report.injected_rows(played)
        show_tables(tables)
    save(json_file, {**tables, "evidence": played.ledger.evidence, "problems": bad})
    complain(bad)


def _injectors(faults: Sequence[Fault], times: int, target: Target, mix: Mix) -> list[Injector]:
    if faults and not target.process:
        raise ConfigError("--inject needs --pid with --url: the first process of the server")
    models = tuple(model for model in mix.models if model != "relay")  # a query has nothing to load
    return [
        Injector(fault, target.process, target.http, times, models, place=place, places=len(faults))
        for place, fault in enumerate(faults)
    ]


def _overload(target: Target, mix: Mix, times: float, seconds: float) -> Found:
    with progress("overload") as tell:
        found = uvloop.run(overload.overload(target, mix, times=times, seconds=seconds, tell=tell))
    tables = {
        f"goodput within {mix.deadlines[0] * 1e3:g} ms": found.rows(),
        f"what became of {times:g} times the peak": report.end_rows(found.played),
    }
    return [*found.played.ledger.evidence, *found.problems()], found.played, tables


def _mixed(
    target: Target, mix: Mix, loads: Sequence[float], seconds: float, scratch: Path, options: Sequence[str]
) -> Found:
    never = scratch / "never.toml"
    never.write_text(overload.NEVER_REFUSES)
    with (
        progress("mixed deadlines") as tell,
        networks.serving(scratch / "free", mix.models, [*options, "--config", str(never)]) as free,
    ):
        found = uvloop.run(overload.mixed(target, free, mix, loads=loads, seconds=seconds, tell=tell))
    both = [each for one in found for each in (one.played, one.free)]
    tables = {
        "refused, and in time with and without admission": [one.row() for one in found],
        "what must never be": [row for each in both for row in report.fault_rows(each)],
    }
    bad = [line for each in both for line in each.ledger.evidence] + [p for one in found for p in one.problems()]
    return bad, found[-1].played, tables
