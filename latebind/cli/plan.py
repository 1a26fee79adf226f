"""`latebind plan`: how many machines, how much memory and which policy some traffic needs, by simulation."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.bench.options import Page
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.domain.errors import ConfigError
from latebind.planning.plan import Plan, make_plan
from latebind.planning.question import Question
from latebind.planning.report import Rows, answer, asked, assumptions, plan_rows, sensitivity_rows
from latebind.planning.runs import playing
from latebind.planning.ways import WAYS, way
from latebind.planning.workload import read_question

SIZES = (100.0, 75.0, 50.0)
MOST_WARM = 90.0


def plan(
    workload: Annotated[Path, typer.Argument(help="A TOML file of models, traffic and kinds of machines.")],
    target: Annotated[float, typer.Option(help="Percent of the requests whose answers must come in time.")] = 99.0,
    memory: Annotated[
        list[float] | None,
        typer.Option(help="Percent of a machine's memory to try; may be repeated. Default: 100, 75 and 50."),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="ROUTER/PLACEMENT/RESIDENCY[/wait]",
            help="A way to run the machines; with /wait nobody is refused for being late; may be repeated. "
            f"Default: {', '.join(one.label for one in WAYS)}.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs with so many draws of the traffic; all must be enough.")] = 3,
    warm: Annotated[float, typer.Option(help="Percent of a run that does not count: memory fills meanwhile.")] = 10.0,
    most: Annotated[int, typer.Option(help="Machines at most. Default: many.")] = 0,
    processes: Annotated[int, typer.Option(help="Runs at a time. Default: one for each core.")] = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Say how many machines the traffic of a workload needs, how much memory each, and how to run them.

    For each kind of machine that the file offers, each share of its memory and each way to run them, clusters are
    simulated with the very rules of the server: the fewest machines are searched with which enough answers come within
    their deadlines. The cheapest is the plan. Then it is tried what becomes of it with more traffic, tighter
    deadlines, less memory, one machine lost, and slower loads.

    Memory `binds` where fewer machines would do if no request had to wait for its model, else compute. The figures of
    your own models come from `latebind build`; how, and how far to trust a plan, stands in docs/plan.md.

    Examples:

    * `latebind plan examples/plan/shop.toml --page plan.html`
    * `latebind plan workload.toml --target 99.9 --memory 100 --way home/importance/late`
    """
    with reporting():
        question = read_question(
            workload,
            ways=tuple([way(text) for text in ways or ()]) or WAYS,
            sizes=_shares(memory or SIZES),
            target=_share("--target", target),
            warm=_warm(warm),
            seeds=seeds,
            most=most,
        )
        console.print(asked(question), highlight=False)
        with progress("planning") as tell, playing(question, tell, processes) as runs:
            found = make_plan(question, runs, curve=page is not None)
        tables = (plan_rows(question, found), sensitivity_rows(found))
        said, assumed = answer(question, found), assumptions(question)
        _show(tables, said, assumed)
        if page is not None:
            _write(page, [said, "Assumed:", *assumed], tables, question, found)
        save(json_file, {"answer": said, "assumed": assumed, "plan": found})
    if found.best is None:
        raise typer.Exit(1)


def _show(tables: Sequence[Rows], said: str, assumed: Sequence[str]) -> None:
    plans, changes = tables
    show("the fewest machines that are enough; * is the plan", plans)
    if changes:
        show("what becomes of the plan if things change", changes)
    console.print(f"[bold]{said}[/]\nAssumed:", highlight=False)
    for line in assumed:
        console.print(f"* {line}", highlight=False)


def _write(page: Path, text: Sequence[str], tables: Sequence[Rows], question: Question, found: Plan) -> None:
    from latebind.bench.page import write_plots
    from latebind.planning.plots import figures

    write_plots(page, "How many machines", "<br>".join(map(escape, text)), tables, figures(question, found))
    console.print(f"page written to {page}")


def _shares(percents: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({_share("--memory", percent) for percent in percents}, reverse=True))


def _warm(percent: float) -> float:
    if not 0 <= percent <= MOST_WARM:
        raise ConfigError(f"--warm {percent:g} leaves too little that counts: give 0 to {MOST_WARM:g} percent")
    return percent / 100


def _share(option: str, percent: float) -> float:
    if not 0 < percent <= 100:
        raise ConfigError(f"{option} {percent:g} is no share: give more than 0 percent, at most 100")
    return percent / 100
