"""`latebind bench cluster`: how fast large clusters are simulated, and what placement and residency gain there."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.cluster.placement import Scene, contest
from latebind.bench.cluster.placement import asked as placed
from latebind.bench.cluster.report import contest_figure, gain_rows, side_rows
from latebind.bench.cluster.scale import Day, day_rows, day_text, play_day, took_text
from latebind.bench.cluster.speed import speed_rows, speeds
from latebind.bench.parallel import Progress
from latebind.bench.residency.azure import services_of
from latebind.cli.bench.options import Page, Processes, Trace
from latebind.cli.bench.told import ByPart, Told, tell_parts, write_page
from latebind.cli.console import JsonFile, console, reporting, save
from latebind.domain.errors import ConfigError
from latebind.planning.runs import playing

SHARES = (0.75, 1.0, 1.5, 2.0, 4.0)
SERVICES = 386  # that are drawn: as many as HTTP and timers call in a sample of 500 of the trace
MODELS_EACH = 10  # models for each machine
PAGE_TEXT = "Simulated; all sides get the same requests, seed by seed, and the second half of the trace counts."


class Part(StrEnum):
    """The parts of the benchmark."""

    SCALE = "scale"
    SPEED = "speed"
    PLACEMENT = "placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """The size of the cluster that is simulated for a day, and its requests."""

    trace: Trace = None
    machines: Annotated[int, typer.Option(min=1, help="For scale: how many machines there are.")] = 1000
    models: Annotated[int, typer.Option(min=1, help="For scale: how many models there are.")] = 5000
    rate: Annotated[float, typer.Option(help="For scale: requests a second, on average over the day.")] = 1e5
    hours: Annotated[int, typer.Option(min=1, help="For scale: how many hours the day has.")] = 24
    window: Annotated[
        float,
        typer.Option(help="For scale: how many seconds of each hour are counted, after as many in which memory fills."),
    ] = 10.0

    def day(self) -> Day:
        """Return the day as the benchmark takes it. Raises `ConfigError`."""
        return Day(services_of(self.trace, SERVICES), self.machines, self.models, self.rate, self.hours, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How many requests are simulated to measure the speed of the simulator."""

    requests: Annotated[
        int,
        typer.Option(min=100, help="For speed: how many requests to simulate; a hundredth of them without compiling."),
    ] = 1_000_000
    rounds: Annotated[int, typer.Option(min=1, help="For speed: how many rounds to measure.")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The clusters on which placement and residency policies are compared."""

    few: Annotated[
        int,
        typer.Option(
            "--few-machines", min=2, help="For placement: how many machines there are; there are ten models for each."
        ),
    ] = 20
    memory: Annotated[
        list[float] | None,
        typer.Option(
            help="For placement: the memory of all machines, as a multiple of what the models take; may be repeated. "
            f"Default: {', '.join(f'{share:g}' for share in SHARES)}."
        ),
    ] = None
    load: Annotated[
        float, typer.Option(help="For placement: the share of the machines' time that requests take without batches.")
    ] = 0.5
    minutes: Annotated[
        int, typer.Option(help="For placement: how many minutes of the trace to play. Default: all.")
    ] = 0
    seeds: Annotated[int, typer.Option(min=1, help="For placement: how many seeds to play, from 0 on.")] = 5

    def scene(self) -> Scene:
        """Return the cluster as the benchmark takes it."""
        return Scene(self.few, MODELS_EACH * self.few, self.load, self.seeds, self.minutes)

    def shares(self) -> tuple[float, ...]:
        """Return the memory of all machines, ascending, as multiples of the models' size. Raises `ConfigError`."""
        for share in self.memory or ():
            if not share > 0:
                raise ConfigError(f"--memory {share:g} is no memory: give how many times all models fit, more than 0")
        return tuple(sorted(self.memory or SHARES))


@dataclass(frozen=True, slots=True)
class Asked:
    """The simulations to run, and the number of processes that run them."""

    day: Day
    scene: Scene
    shares: tuple[float, ...]
    speed: Speed
    processes: int


def cluster(
    *,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to simulate. scale: a large cluster for a day, sampled in windows; speed: simulated "
            "requests a second on one core; placement: what placement by importance and the residency policy "
            "late gain over the usual ways. May be repeated. Default: all."
        ),
    ] = None,
    days: Days,
    speed: Speed,
    scenes: Scenes,
    processes: Processes = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate large clusters: how long that takes, and what placement and residency gain.

    `scale` says how long a whole day would take to simulate, and plays a window of each hour, with all of its requests
    on all machines. `speed` plays models of one stage and of twenty on one core; beside it the scheduler itself plays a
    hundredth of the requests on a tenth of the machines. `placement` plays a whole trace and counts its second half, so
    that placement only sees the past. It compares ours (placement by importance, `late` memories) with what is usual
    (random, least-loaded and two-choices routing, with LRU), and with random homes and LRU behind our own router. All
    get the same requests, each with or without shedding, whichever is better for it. The measure is the best of the
    usual ways at each share of memory; a table shows all.

    Without --trace, counts are drawn with rates as in the trace.

    Example: `latebind bench cluster --part placement --trace invocations_per_function_md.anon.d01.csv --seeds 3`
    """
    with reporting():
        asked = Asked(days.day(), scenes.scene(), scenes.shares(), speed, processes)
        console.print(f"services of {days.trace or 'a trace that is drawn'}: {len(asked.day.services)}")
        found = tell_parts(part or Part, RUN, asked)
        write_page(page, "Simulated clusters", PAGE_TEXT, found.values())
    save(json_file, {one: {"tables": told.tables, "figures": told.raw} for one, told in found.items()})


def _scale(asked: Asked, tell: Progress) -> Told:
    day, began = asked.day, time.perf_counter()
    for line in day_text(day):
        console.print(line)
    seen = play_day(day, tell, asked.processes)
    took = time.perf_counter() - began
    console.print(took_text(day, seen, took))
    return Told({"a window of each hour": day_rows(seen)}, raw=seen)


def _speed(asked: Asked, tell: Progress) -> Told:
    found = speeds(asked.day.services, asked.speed.requests, asked.speed.rounds, tell)
    return Told({"simulated requests a second, on one core": speed_rows(found)}, raw=found)


def _placement(asked: Asked, tell: Progress) -> Told:
    question = placed(asked.day.services, asked.scene)
    with playing(question, tell, asked.processes) as runs:
        found = contest(question, runs, asked.shares, asked.scene.machines)
    scene = asked.scene
    title = f"{scene.machines} machines, {scene.models} models, load {scene.load:g}, {scene.seeds} seeds"
    tables = {f"ours and the best of the others: {title}": gain_rows(found), "everybody, in time": side_rows(found)}

    return Told(tables, lambda: [contest_figure(found)], raw=tables)


RUN: ByPart[Part, Asked] = {Part.SCALE: _scale, Part.SPEED: _speed, Part.PLACEMENT: _placement}
