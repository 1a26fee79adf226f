"""`latebind plan`: how many machines, how much memory and which policy some traffic needs, by simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.console import console, progress, reporting, save, show
from latebind.cli.options import JsonFile, Page
from latebind.domain.errors import ConfigError
from latebind.planning.plan import Plan, make_plan
from latebind.planning.question import WAYS, Question, read_question, way
from latebind.planning.report import Rows, answer, asked, assumptions, plan_rows, plots, sensitivity_rows
from latebind.planning.runs import playing
from latebind.planning.sampling import sampling_of

SIZES = (100.0, 75.0, 50.0)
MOST_WARM = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is planned for: the traffic, and how much of it must be answered in time."""

    workload: Annotated[
        Path, typer.Argument(help="A TOML file that describes the models, their traffic and the kinds of machines.")
    ]
    target: Annotated[
        float, typer.Option(help="Percent of all requests that must be answered within their deadlines.")
    ] = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The clusters that are tried."""

    memory: Annotated[
        list[float] | None,
        typer.Option(help="Percent of a machine's memory that models may use; may be repeated. Default: 100, 75, 50."),
    ] = None
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="RESIDENCY[/wait]",
            help="How the machines are run: which residency policy decides what is in memory. With /wait no request is "
            "refused for being late. May be repeated. "
            f"Default: {', '.join(one.label for one in WAYS)}.",
        ),
    ] = None
    most: Annotated[
        int, typer.Option(help="The most machines to try. Default 0: many times what the traffic asks for.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulations:
    """How each candidate is simulated."""

    seeds: Annotated[
        int, typer.Option(min=1, help="Simulate each cluster with this many draws of the traffic; all must suffice.")
    ] = 3
    warm: Annotated[
        float, typer.Option(help="Percent of a simulation, at its start, that is not counted: memory is filling then.")
    ] = 10.0
    processes: Annotated[
        int, typer.Option(help="How many simulations run at the same time. Default 0: one for each core.")
    ] = 0


def plan(
    demand: Demand,
    *,
    candidates: Candidates,
    simulations: Simulations,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Say how many machines a workload needs, how much memory each, and how to run them.

    Clusters are simulated with the very rules of the server, large ones in samples. For each kind of machine in the
    file, each share of its memory and each way to run the machines, the command searches for the smallest number of
    machines that answers enough requests within their deadlines. The cheapest of these clusters is the plan. It is
    then simulated again with more traffic, tighter deadlines, less memory, one machine lost and slower loads.

    Memory `binds` a cluster if fewer machines would do once no request had to wait for its model to load, else compute
    does. The figures of your own models come from `latebind build`. How to get them, and how
    far to trust a plan: docs/plan.md.

    Examples:

    * `latebind plan examples/plan/shop.toml --page plan.html`
    * `latebind plan workload.toml --target 99.9 --memory 100 --way late`
    """
    with reporting():
        question = _question(demand, candidates, simulations)
        sampling = sampling_of(question)
        console.print(asked(question, sampling), highlight=False)
        with progress("planning") as tell, playing(question, tell, simulations.processes, sampling) as runs:
            found = make_plan(question, runs, curve=page is not None)
        tables = (plan_rows(found), sensitivity_rows(found))
        said, assumed = answer(question, found), assumptions(question, sampling)
        _show(tables, said, assumed)
        if page is not None:
            _write(page, [said, "Assumed:", *assumed], tables, question, found)
        save(json_file, {"answer": said, "assumed": assumed, "plan": found})
    if found.best is None:
        raise typer.Exit(1)


def _question(demand: Demand, candidates: Candidates, simulations: Simulations) -> Question:
    """Read the workload. Raises `ConfigError` for options and workloads that make no sense."""
    return read_question(
        demand.workload,
        ways=tuple([way(text) for text in candidates.ways or ()]) or WAYS,
        sizes=_shares(candidates.memory or SIZES),
        target=_share("--target", demand.target),
        warm=_warm(simulations.warm),
        seeds=simulations.seeds,
        most=candidates.most,
    )


def _show(tables: Sequence[Rows], said: str, assumed: Sequence[str]) -> None:
    plans, changes = tables
    show("the fewest machines that are enough; * is the plan", plans)
    if changes:
        show("what becomes of the plan if things change", changes)
    console.print(f"[bold]{said}[/]\nAssumed:", highlight=False)
    for line in assumed:
        console.print(f"* {line}", highlight=False)


def _write(page: Path, text: Sequence[str], tables: Sequence[Rows], question: Question, found: Plan) -> None:
    from latebind.bench.report import write_plots

    write_plots(page, "How many machines", "<br>".join(map(escape, text)), tables, plots(question, found))
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
