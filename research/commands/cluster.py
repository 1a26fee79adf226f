"""`python -m research cluster`: what placement and residency gain on simulated clusters."""

from dataclasses import dataclass
from typing import Annotated

import typer

from latebind.cli.bench.options import Page, Processes, Trace
from latebind.cli.console import JsonFile, console, progress, reporting, show_tables
from latebind.domain.errors import ConfigError
from latebind.planning.runs import playing
from research.cluster.placement import Scene, asked, contest
from research.cluster.report import contest_figure, gain_rows, side_rows
from research.mcache.azure import services_of
from research.told import Files, Told

SHARES = (0.75, 1.0, 1.5, 2.0, 4.0)
SERVICES = 386  # that are drawn: as many as HTTP and timers call in a sample of 500 of the trace
MODELS_EACH = 10  # models for each machine
PAGE_TEXT = "Simulated; all sides get the same requests, seed by seed, and the second half of the trace counts."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The clusters on which placement and residency policies are compared."""

    trace: Trace = None
    machines: Annotated[
        int, typer.Option(min=2, help="How many machines there are; there are ten models for each.")
    ] = 20
    memory: Annotated[
        list[float] | None,
        typer.Option(
            help="The memory of all machines, as a multiple of what the models take; may be repeated. "
            f"Default: {', '.join(f'{share:g}' for share in SHARES)}."
        ),
    ] = None
    load: Annotated[float, typer.Option(help="The share of the machines' time that requests take without batches.")] = (
        0.5
    )
    minutes: Annotated[int, typer.Option(help="How many minutes of the trace to play. Default 0: all.")] = 0
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play, from 0 on.")] = 5

    def scene(self) -> Scene:
        """Return the cluster as the benchmark takes it."""
        return Scene(self.machines, MODELS_EACH * self.machines, self.load, self.seeds, self.minutes)

    def shares(self) -> tuple[float, ...]:
        """Return the memory of all machines, ascending, as multiples of the models' size. Raises `ConfigError`."""
        for share in self.memory or ():
            if not share > 0:
                raise ConfigError(f"--memory {share:g} is no memory: give how many times all models fit, more than 0")
        return tuple(sorted(self.memory or SHARES))


def cluster(*, scenes: Scenes, processes: Processes = 0, page: Page = None, json_file: JsonFile = None) -> None:
    """Compare placement by importance and `late` memories with the usual ways on a simulated cluster.

    A whole trace is played and its second half counts, so that placement only sees the past. Ours (placement by
    importance, `late` memories) is compared with what is usual (random, least-loaded and two-choices routing, with
    LRU), and with random homes and LRU behind our own router. All get the same requests, each with or without shedding,
    whichever is better for it. The measure is the best of the usual ways at each share of memory; a table shows all.

    Some thousand requests a second and core are simulated; --machines, --minutes, --memory and --seeds say how many
    there are. Without --trace, counts are drawn with rates as in the trace.

    Example: `python -m research cluster --trace invocations_per_function_md.anon.d01.csv --minutes 240 --seeds 3`
    """
    with reporting():
        scene, shares, services = scenes.scene(), scenes.shares(), services_of(scenes.trace, SERVICES)
        console.print(f"services of {scenes.trace or 'a trace that is drawn'}: {len(services)}")
        question = asked(services, scene)
        with progress("placement") as tell, playing(question, tell, processes) as runs:
            found = contest(question, runs, shares, scene.machines)
        title = f"{scene.machines} machines, {scene.models} models, load {scene.load:g}, {scene.seeds} seeds"
        tables = {f"ours and the best of the others: {title}": gain_rows(found), "everybody, in time": side_rows(found)}
        show_tables(tables)
        files = Files(
            page=page,
            title="Simulated clusters",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda told: told["placement"].tables,
        )
        files.write({"placement": Told(tables, lambda: [contest_figure(found)])})
