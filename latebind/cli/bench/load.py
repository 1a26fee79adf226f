"""`latebind bench load`, `flood` and `door`: requests through the port, many at once."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import latebind
from latebind.bench import door as door_bench
from latebind.bench import flood as flood_bench
from latebind.bench import load as load_bench
from latebind.cli.bench.options import Core, DoorCore, Page, Seed
from latebind.cli.bench.settings import Subject
from latebind.cli.console import JsonFile, console, reporting, save, show


def load(
    subject: Subject,
    *,
    requests: Annotated[int, typer.Option(help="Requests of each side.")] = 2000,
    rate: Annotated[float | None, typer.Option(help="Requests a second. Default: by --load.")] = None,
    share: Annotated[float, typer.Option("--load", help="Rate as a share of what is answered one by one.")] = 0.7,
    deadline_ms: Annotated[float, typer.Option(help="How long an answer may take.")] = 1000.0,
    page: Page = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Latency under Poisson traffic over HTTP with exits off and on, the same arrivals for both."""
    with reporting():
        inputs, labels = subject.rows()
        report = load_bench.run(
            subject.repository,
            subject.model,
            inputs,
            labels,
            requests=requests,
            rate=rate,
            load=share,
            deadline=deadline_ms / 1e3,
            seed=seed,
        )
        show(f"{subject.model}: {requests} requests a side at {report.rate:.0f}/s, Poisson, seed {seed}", report.rows())
        show("where they left, exits on", report.exit_rows())
        if page is not None:
            from latebind.bench.page import write_page

            write_page(report, page, title=f"latebind: {subject.model} with exits off and on")
            console.print(f"page written to {page}")
    save(json_file, {"sides": report.rows(), "exits": report.exit_rows()})


def flood(
    subject: Subject,
    *,
    rounds: Annotated[int, typer.Option(help="Pairs of phases, without and with the flood.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a phase.")] = 3.0,
    engine_core: Core = 1,
    door_core: DoorCore = 0,
    json_file: JsonFile = None,
) -> None:
    """Throughput of the engine on its own core while 16 clients flood the door with small requests."""
    with reporting():
        inputs, _ = subject.rows()
        report = flood_bench.run(
            subject.repository,
            subject.model,
            inputs,
            rounds=rounds,
            seconds=seconds,
            door_cores=(door_core,),
            engine_core=engine_core,
        )
    show(f"{subject.model}: {rounds} rounds of {seconds:g} s, medians", [asdict(report)])
    save(json_file, report)


def door(
    checkout: Annotated[
        list[Path] | None, typer.Option(help="Folder of a latebind to measure; may be repeated. Default: this one.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds in which all take turns.")] = 40,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """What a call takes whose model does next to nothing, by the size of its tensor; two checkouts can be compared.

    Example: `latebind bench door --checkout ../before --checkout .`
    """
    with reporting():
        checkouts = [folder.resolve() for folder in checkout or [Path(latebind.__file__).parents[1]]]
        figures = door_bench.run(checkouts, rounds=rounds, seed=seed)
    show(f"the door, {rounds} rounds, seed {seed}", [figure.row() for figure in figures])
    save(json_file, figures)
