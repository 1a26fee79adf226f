"""`python -m research queries-live`: queries on engines here."""

import asyncio
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.cli.bench.options import Backend, Core, DataOption, DoorCore, Page, Repository, Seed
from latebind.cli.console import JsonFile, console, reporting
from latebind.cli.sources import load_rows
from latebind.domain.errors import ConfigError
from research.gati.queries.live import overhead, plots, replanning, report
from research.gati.queries.live.asked import Rows
from research.gati.queries.live.sides import Served, Setting, find_query, sides
from research.told import ByPart, Files, Told, tell_parts

PAGE_TEXT = "Every side has an engine of its own, asked for the same rows in turn."


class Part(StrEnum):
    """The parts of the benchmark."""

    REPLANNING = "replanning"
    OVERHEAD = "overhead"


class Split(StrEnum):
    """How the deadline is split over the steps, by the sides that split it."""

    EQUAL = "equal"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The requests that all sides get, and how their deadlines are split."""

    deadline_ms: Annotated[
        list[float] | None,
        typer.Option(
            help="A deadline; may be repeated. Default: three deadlines, found by trial calls, at which a plan "
            "made in advance just misses the best models, by less time than learned caches save."
        ),
    ] = None
    split: Annotated[Split, typer.Option(help="How the planners that split the deadline among the steps do it.")] = (
        Split.PROPORTIONAL
    )
    requests: Annotated[int, typer.Option(min=1, help="How many rows each side is sent at each deadline.")] = 2000
    rate: Annotated[
        float, typer.Option(min=0.0, help="Requests a second on average; 0 sends one after another, as in the paper.")
    ] = 0.0

    def plan(self, seed: int) -> replanning.Plan:
        """Return the plan of the measurement. Raises `ConfigError`."""
        if any(not one > 0 for one in self.deadline_ms or ()):
            raise ConfigError("--deadline-ms is the time that a query has: give more than 0")
        deadlines = tuple([one / 1e3 for one in self.deadline_ms or ()])
        return replanning.Plan(self.requests, deadlines, self.rate, seed)

    def __str__(self) -> str:
        pace = f"{self.rate:g} a second" if self.rate else "one after another"
        return f"{self.requests} rows a side, {pace}, split {self.split}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """How to measure the time that a query takes beyond its models."""

    rounds: Annotated[int, typer.Option(min=1, help="For overhead: how often the throughput is measured.")] = 5
    clients: Annotated[int, typer.Option(min=1, help="For overhead: how many clients always wait for an answer.")] = (
        overhead.CLIENTS
    )
    caches: Annotated[
        bool,
        typer.Option(
            help="For overhead: use learned caches, so that a step which most requests leave early costs little "
            "beside the other."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The cores and the settings of the engines of all sides."""

    backend: Backend = None
    engine_core: Core = 1
    door_core: DoorCore = 0
    other_core: Annotated[
        int | None,
        typer.Option(help="For overhead: the core of a second worker. Default: the core of the door and the client."),
    ] = None
    seed: Seed = 0

    def setting(self) -> Setting:
        """Return the settings of the engines."""
        return Setting((self.engine_core,), (self.door_core,), backend=self.backend, seed=self.seed)

    @property
    def own_cores(self) -> tuple[int, int]:
        """The cores of the engine that has a worker for each of two steps."""
        return self.engine_core, self.door_core if self.other_core is None else self.other_core


def queries_live(
    repository: Repository,
    *,
    data: Annotated[str, typer.Option(help="Rows with labels to send: an .npz file or package.module:function.")],
    data_option: DataOption = None,
    query: Annotated[
        str | None, typer.Option(help="The name of the query in the folder. Default: the only one.")
    ] = None,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="What to measure. replanning: learned caches with replanning, against neither; overhead: the "
            "query against its models alone. May be repeated. Default: both."
        ),
    ] = None,
    asking: Asking,
    beyond: Beyond,
    engines: Engines,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare planners of a query on live engines, and measure what a query takes beyond its models.

    `static` has no learned caches and picks all models when the query arrives. `replanned` splits the deadline in the
    same way, but picks each model when its step begins, with the time that learned caches have saved. `expected` picks
    by expected accuracy. All sides are sent the same rows, in blocks that take turns. Nothing is refused or dropped for
    being late, so that every row counts on every side; late answers are counted. Differences are paired by row, with 95
    % intervals.

    `overhead` uses learned caches only with `--caches`. On one worker, a query runs all of its steps on the same core,
    so its throughput can be no more than that of its models one after another. With a worker and a core for each step,
    the query is compared with the slower step alone, on one worker and on the same workers. More cores than that make
    the bar easy, and workers share the longer step where steps differ. CPU time stands beside it, because other load on
    the machine changes it less. The last table gives the length of steps from which a query reaches 0.95 of them, if
    its extra time does not change with that length. Batches are as large as the models take when `--clients` equals the
    engine's 64 slots.

    Examples:

    * `python -m research queries-live out/query/models --data examples.query.scenes:unseen --data-option data=cifar10/`
    * `python -m research queries-live out/query/models --part overhead --data examples.query.scenes:unseen`
    """
    with reporting(), pinned((engines.door_core,)):
        plan, setting = asking.plan(engines.seed), engines.setting()
        inputs, labels = load_rows(data, data_option)
        if labels is None:
            raise ConfigError(f"--data {data!r} gives no labels: accuracy is what sides differ in")
        served = find_query(repository, query)
        asked = Asked(served, Rows(inputs, labels), plan, setting, asking.split, beyond, engines.own_cores)
        console.print(f"{served.name}: {asking}, seed {engines.seed}")
        known = {"query": served.name, "setting": asdict(setting)}
        files = Files(
            page=page,
            title="A query on live engines",
            text=PAGE_TEXT,
            json_file=json_file,
            figures=lambda found: (
                known | {one: {"tables": told.tables, "raw": told.raw} for one, told in found.items()}
            ),
        )
        tell_parts(part or Part, RUN, asked, files)


@dataclass(frozen=True, slots=True)
class Asked:
    """The query, the rows to send and the plan."""

    served: Served
    rows: Rows
    plan: replanning.Plan
    setting: Setting
    split: str
    beyond: Beyond
    own_cores: tuple[int, ...]


def _replanning(asked: Asked, tell: Progress) -> Told:
    found = asyncio.run(replanning.run(asked.served, sides(asked.split), asked.rows, asked.plan, asked.setting, tell))
    tables = {"models by themselves, to their ends": report.model_rows(found)}
    for deadline, calls in found.calls.items():
        tables[f"due after {deadline * 1e3:.3f} ms"] = report.side_rows(calls, deadline, asked.plan.seed)
    tables["which models answered"] = report.chosen_rows(found)

    return Told(tables, lambda: [plots.trade_figure(found)])


def _overhead(asked: Asked, tell: Progress) -> Told:
    found = asyncio.run(
        overhead.run(
            asked.served,
            asked.rows,
            asked.setting,
            tell,
            requests=asked.plan.requests,
            rounds=asked.beyond.rounds,
            clients=asked.beyond.clients,
            caches=asked.beyond.caches,
            own_cores=asked.own_cores,
        )
    )
    tables = {
        "a query against its models, one after another": report.latency_rows(found, asked.plan.seed),
        f"throughput, {asked.beyond.clients} clients that always wait": report.throughput_rows(found, asked.plan.seed),
        "CPU time of an answer, least of the rounds": report.cpu_rows(found),
        f"from which length of steps on the query carries {report.HELD} of them": report.length_rows(
            found, asked.plan.seed
        ),
    }
    return Told(tables, raw={"one worker": asdict(found.one), "a worker for each step": asdict(found.each)})


RUN: ByPart[Part, Asked] = {
    Part.REPLANNING: _replanning,
    Part.OVERHEAD: _overhead,
}
