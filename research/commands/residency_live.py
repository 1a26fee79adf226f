"""`python -m research residency-live`: models in less memory than they take, on engines here."""

import asyncio
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Page, Seed
from latebind.cli.console import JsonFile, console, progress, reporting, show
from latebind.domain.config import TIERS
from latebind.domain.errors import ConfigError
from latebind.simulation.traces import Pairing
from research.live.sides import chosen
from research.mcache import leaks
from research.mcache.azure import services_of
from research.mcache.live import cold, crowd, plots, report, trace
from research.mcache.live.sides import SIDES, Setting
from research.mcache.live.zoo import Zoo, weigh
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Every side has an engine of its own, asked the same things at the same times."


class Part(StrEnum):
    """The parts of the benchmark."""

    TRACE = "trace"
    CROWD = "crowd"
    COLD = "cold"
    LEAKS = "leaks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The requests, their speed, and the sides to compare."""

    share: Annotated[
        list[float] | None,
        typer.Option(
            help="The memory that models may use, as a share (0 to 1) of what all of them take; may be repeated "
            "for crowd. Default: 0.4, and for crowd 0.4 and 0.6."
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="A day of the Azure Functions trace, as the published CSV or as .npz, of which functions count that "
            "HTTP or a timer calls. Default: counts drawn with rates as in the trace.",
        ),
    ] = None
    pairing: Annotated[Pairing, typer.Option(help="How models are assigned to the services of the trace.")] = (
        Pairing.RANDOM
    )
    speed: Annotated[float, typer.Option(min=0.01, help="How many times faster than in the trace requests arrive.")] = (
        10.0
    )
    seconds: Annotated[float, typer.Option(min=0.1, help="How many seconds a block of requests lasts.")] = 20.0
    warm_up: Annotated[
        float, typer.Option(min=0.0, help="Seconds at the start of each block that are not counted.")
    ] = 5.0
    rounds: Annotated[
        int, typer.Option(min=1, help="How many blocks each side gets; for cold, how many first answers of each kind.")
    ] = 3
    side: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare only this side: {'; '.join(SIDES)}; may be repeated. Default: all."),
    ] = None

    def shares(self) -> tuple[float, ...]:
        """Return the shares of memory, by default those of each part. Raises `ConfigError`."""
        if any(not 0 < one <= 1 for one in self.share or ()):
            raise ConfigError("--share is a part of the models' memory: give more than 0 and at most 1")
        return tuple(self.share or ())

    def plan(self, seed: int) -> trace.Plan:
        """Return the plan of the runs. Raises `ConfigError`."""
        sides = tuple(chosen(SIDES, self.side or ()))
        return trace.Plan(
            services_of(self.file),
            speed=self.speed,
            seconds=self.seconds,
            warm_up=self.warm_up,
            rounds=self.rounds,
            pairing=self.pairing,
            seed=seed,
            sides=sides,
        )

    def __str__(self) -> str:
        pace = f"{self.speed:g} times as fast as {self.file or 'a trace that is drawn'}"
        return f"{self.rounds} rounds of {self.seconds:g} s, {pace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Much:
    """The amount of work in the parts that do not use the trace."""

    clients: Annotated[int, typer.Option(min=1, help="How many clients the crowd has.")] = crowd.CLIENTS
    largest: Annotated[int, typer.Option(min=1, help="For cold: how many models start cold, the largest first.")] = 3
    resident: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="For cold: the share of a model's stages in memory where it starts partly resident."
        ),
    ] = 0.5
    loads: Annotated[int, typer.Option(min=1, help="For leaks: how often models are loaded and unloaded.")] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The settings of the engines of all sides."""

    tier: Annotated[
        str, typer.Option(help=f"Where evicted stages stay, {' or '.join(TIERS)}; from disk they are read again.")
    ] = "disk"
    workers: Annotated[int, typer.Option(min=1, help="How many workers each engine has, with one thread each.")] = 1
    patience: Annotated[
        float, typer.Option(help="The most seconds that a request waits for its model while others are loaded.")
    ] = 30

    def setting(self) -> Setting:
        """Return the settings of the engines. Raises `ConfigError`."""
        if self.tier not in TIERS:
            raise ConfigError(f"--tier {self.tier!r}: choose {' or '.join(TIERS)}")
        return Setting(tier=self.tier, workers=self.workers, patience=self.patience)

    def __str__(self) -> str:
        return f"tier {self.tier}, {self.workers} workers of 1 thread"


def residency_live(
    models: Annotated[
        Path, typer.Argument(help="A folder of several models, such as the one that examples/zoo builds.")
    ],
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to measure. trace: the requests of an hour, played faster; crowd: clients that send again "
            "as soon as they have an answer; cold: the first answers of the largest models; leaks: what loads "
            "leave behind in memory. May be repeated. Default: all."
        ),
    ] = None,
    played: Played,
    much: Much,
    engines: Engines,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare residency policies on live engines that have less memory than their models take.

    Every side is an engine of its own with all models of the folder. It is started for its block with none of their
    files in the page cache, and every side is sent the same requests at the same times. An engine reads all files as it
    starts. With --tier page-cache they stay in the page cache from then on, so loads read memory. The tables say what
    was read from where.

    Nothing is refused or dropped for being late, learned caches are off, and rows are made up. `lru, in order` is what
    servers usually do: whole models, requests in order of arrival, and nothing runs while a model loads. `lru` and
    `iam` have everything of this server except loading by stages: they load whole models.

    The memory of an engine's process is read from /proc every tenth of a second, and compared with the memory it takes
    with nothing loaded. A block ends when every request is answered, which takes long for a side that cannot keep up.
    An open trace has no steady latency then, so try a lower --speed too.

    Examples:

    * `python -m research residency-live out/zoo --part trace --speed 5`
    * `python -m research residency-live out/zoo --part crowd --share 0.4 --patience 10 --side
      "lru, in order" --side late`
    * `python -m research residency-live out/zoo --part cold --tier page-cache --rounds 5`
    """
    with reporting():
        setting, shares, plan = engines.setting(), played.shares(), played.plan(seed)
        with progress("residency") as tell:
            zoo = weigh(models, tell)
        asked = Asked(zoo, plan, setting, shares, much)
        console.print(f"{len(zoo.models)} models of {zoo.size / 1e9:.2f} GB; {engines}, {played}, seed {seed}")
        show("models, loaded from disk", report.zoo_rows(zoo))
        known = {"models": report.zoo_rows(zoo), "setting": asdict(setting)}
        files = Files(
            page=page,
            title="Models in less memory than they take, live",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: (
                known | {one: {"tables": told.tables, "raw": told.raw} for one, told in found.items()}
            ),
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The plan and the models."""

    zoo: Zoo
    plan: trace.Plan
    setting: Setting
    shares: tuple[float, ...]
    much: Much


def _trace(asked: Asked, tell: Progress) -> Told:
    plan = replace(asked.plan, share=(asked.shares or (0.4,))[0])
    found = asyncio.run(trace.run(asked.zoo, plan, asked.setting, tell))

    tables = {
        f"requests of a trace in {plan.share:.0%} of the memory": report.trace_rows(found, plan.seed),
        "what was loaded, warm-up included": report.load_rows(found),
        "memory of the engines' processes above what they take with nothing loaded": report.memory_rows(found),
    }
    calls = {
        name: [[(call.model, call.sent, call.seconds) for call in block.calls] for block in some]
        for name, some in found.items()
    }
    return Told(tables, lambda: [plots.latency_figure(found), plots.memory_figure(found)], calls)


def _crowd(asked: Asked, tell: Progress) -> Told:
    plan = asked.plan
    found = asyncio.run(crowd.run(asked.zoo, plan, asked.shares or (0.4, 0.6), asked.setting, asked.much.clients, tell))

    title = f"{asked.much.clients} clients that send their next request as soon as they have an answer"
    tables = {title: report.crowd_rows(found, plan, asked.setting, plan.seed)}
    for share, sides in found.items():
        tables[f"what was loaded in {share:.0%} of the memory"] = report.load_rows(sides)
        tables[f"memory of the engines' processes, {share:.0%}"] = report.memory_rows(sides)
    return Told(tables, lambda: [plots.crowd_figure(found, plan)])


def _cold(asked: Asked, tell: Progress) -> Told:
    found = asyncio.run(
        cold.run(
            asked.zoo,
            models=asked.much.largest,
            resident=asked.much.resident,
            rounds=asked.plan.rounds,
            setting=asked.setting,
            seed=asked.plan.seed,
            progress=tell,
        )
    )

    return Told(
        {"first answers of the largest models": report.cold_rows(found)}, lambda: [plots.cold_figure(found)], found
    )


def _leaks(asked: Asked, tell: Progress) -> Told:
    found = leaks.run(rounds=asked.much.loads)
    return Told({"loads and unloads in a process of their own": report.leak_rows(found)}, raw=found)


RUN: ByPart[Part, Asked] = {
    Part.TRACE: _trace,
    Part.CROWD: _crowd,
    Part.COLD: _cold,
    Part.LEAKS: _leaks,
}
