"""`latebind bench load`: requests through the port, many at once."""

from typing import Annotated

import typer

from latebind.bench import load as load_bench
from latebind.bench.plots import write_page
from latebind.cli.bench.options import Page, Seed, Subject
from latebind.cli.console import JsonFile, console, reporting, save, show


def load(
    subject: Subject,
    *,
    requests: Annotated[int, typer.Option(help="How many requests each side gets.")] = 2000,
    rate: Annotated[float | None, typer.Option(help="Requests a second. Default: as --load says.")] = None,
    share: Annotated[
        float, typer.Option("--load", help="The rate, as a share of what the model answers one request at a time.")
    ] = 0.7,
    deadline_ms: Annotated[
        float, typer.Option(help="The deadline of every request, in milliseconds after its arrival.")
    ] = 1000.0,
    page: Page = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure latency under Poisson traffic over HTTP with exits off and on, with the same arrivals for both."""
    with reporting():
        deadline = deadline_ms / 1e3
        report = load_bench.run(subject.load(), requests=requests, rate=rate, load=share, deadline=deadline, seed=seed)
        show(f"{subject.model}: {requests} requests a side at {report.rate:.0f}/s, Poisson, seed {seed}", report.rows())
        show("where they left, exits on", report.exit_rows())
        if page is not None:
            write_page(report, page, title=f"latebind: {subject.model} with exits off and on")
            console.print(f"page written to {page}")
    save(json_file, {"sides": report.rows(), "exits": report.exit_rows()})
