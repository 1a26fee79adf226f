"""`latebind plan`: how many machines, how much memory and which policy a given traffic needs, by simulation."""

from html import escape
from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.console import console, progress, reporting, save, show
from latebind.cli.options import JsonFile, Page
from latebind.domain.errors import ConfigError
from latebind.planning.plan import make_plan
from latebind.planning.question import WAYS, read_question, way
from latebind.planning.report import answer, asked, assumptions, plan_rows, plots, sensitivity_rows
from latebind.planning.runs import playing
from latebind.planning.sampling import sampling_of

SIZES = (100.0, 75.0, 50.0)
MOST_WARM = 90.0


def plan(
    workload: Annotated[
        Path, typer.Argument(help="A TOML file that describes the models, their traffic and the kinds of machines.")
    ],
    *,
    target: Annotated[
        float, typer.Option(help="Percent of all requests that must be answered within their deadlines.")
    ] = 99.0,
    memory: Annotated[
        list[float] | None,
        typer.Option(help="Percent of a machine's memory that models may use; may be repeated. Default: 100, 75, 50."),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="RESIDENCY[/wait]",
            help="The residency policy, which decides what is in memory. With /wait no request is "
            f"refused for being late. May be repeated. Default: {', '.join(one.label for one in WAYS)}.",
        ),
    ] = None,
    most: Annotated[
        int, typer.Option(help="The most machines to try. Default 0: many times what the traffic needs.")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Simulate each cluster with this many draws of the traffic; all must suffice.")
    ] = 3,
    warm: Annotated[
        float, typer.Option(help="Percent of a simulation, at its start, that is not counted while memory fills.")
    ] = 10.0,
    processes: Annotated[
        int, typer.Option(help="How many simulations run at the same time. Default 0: one for each core.")
    ] = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compute how many machines a workload needs, how much memory each, and how to run them.

    Clusters are simulated with the code of the server, large ones in samples. For each kind of machine in the
    file, each share of its memory and each way to run the machines, the command searches for the smallest number of
    machines that answers enough requests within their deadlines. The cheapest of these clusters is the plan. It is
    then simulated again with more traffic, tighter deadlines, less memory, one machine lost and slower loads.

    Memory `binds` a cluster if fewer machines would be enough when no request had to wait for its model to load;
    otherwise compute does. The figures of your own models come from `latebind build`. docs/plan.md says how to get
    them, and how far to trust a plan.

    Examples:

    * `latebind plan examples/plan/shop.toml --page plan.html`
    * `latebind plan workload.toml --target 99.9 --memory 100 --way late`
    """
    with reporting():
        if not 0 <= warm <= MOST_WARM:
            raise ConfigError(f"--warm {warm:g} leaves too little to count: give 0 to {MOST_WARM:g} percent")
        question = read_question(
            workload,
            ways=tuple([way(text) for text in ways or ()]) or WAYS,
            sizes=tuple(sorted({_share("--memory", percent) for percent in memory or SIZES}, reverse=True)),
            target=_share("--target", target),
            warm=warm / 100,
            seeds=seeds,
            most=most,
        )
        sampling = sampling_of(question)
        console.print(asked(question, sampling), highlight=False)
        with progress("planning") as on_progress, playing(question, on_progress, processes, sampling) as runs:
            found = make_plan(question, runs, curve=page is not None)
        plans, changes = plan_rows(found), sensitivity_rows(found)
        summary, assumed = answer(question, found), assumptions(question, sampling)
        show("the fewest machines that are enough; * is the plan", plans)
        if changes:
            show("the plan under other conditions", changes)
        console.print("\n* ".join([f"[bold]{summary}[/]\nAssumed:", *assumed]), highlight=False)
        if page is not None:
            from latebind.bench.report import write_plots

            text = "<br>".join(map(escape, [summary, "Assumed:", *assumed]))
            write_plots(page, "How many machines", text, (plans, changes), plots(question, found))
            console.print(f"page written to {page}")
        save(json_file, {"answer": summary, "assumed": assumed, "plan": found})
    if found.best is None:
        raise typer.Exit(1)


def _share(option: str, percent: float) -> float:
    if not 0 < percent <= 100:
        raise ConfigError(f"{option} {percent:g} is out of range: give more than 0 percent, at most 100")

    return percent / 100
