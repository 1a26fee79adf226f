"""`latebind bench queries-live`: queries on engines here."""

import asyncio
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import typer

from latebind.bench.parallel import Progress
from latebind.bench.queries.live import overhead, plots, replanning, report
from latebind.bench.queries.live.asked import Rows
from latebind.bench.queries.live.sides import Served, Setting, find_query, sides
from latebind.bench.server import pinned
from latebind.cli.bench.options import Awake, Backend, Core, DataOption, DoorCore, Page, Repository, Seed
from latebind.cli.bench.told import ByPart, Told, tell_parts, write_page
from latebind.cli.console import JsonFile, console, reporting, save
from latebind.cli.sources import load_rows
from latebind.domain.errors import ConfigError
from latebind.engine.awake import kept_awake

PAGE_TEXT = "Every side has an engine of its own, asked for the same rows in turn."


class Part(StrEnum):
    """What to run."""

    REPLANNING = "replanning"
    OVERHEAD = "overhead"


class Split(StrEnum):
    """How the deadline is split by the sides that split it."""

    EQUAL = "equal"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What sides are asked, and how their deadlines are split."""

    deadline_ms: Annotated[
        list[float] | None,
        typer.Option(
            help="A deadline; may be repeated. Default: three that are just too short for a plan made beforehand to "
            "reach the best models, by less than learned caches save; where that is, is found out first, by asking."
        ),
    ] = None
    split: Annotated[Split, typer.Option(help="How deadlines are split where they are.")] = Split.PROPORTIONAL
    requests: Annotated[int, typer.Option(min=1, help="Rows for each side at each deadline.")] = 2000
    rate: Annotated[
        float, typer.Option(min=0.0, help="Requests a second, on average; 0: one after another, as in the paper.")
    ] = 0.0

    def plan(self, seed: int) -> replanning.Plan:
        """Return it in the words of the measurement. Raises `ConfigError`."""
        if any(not one > 0 for one in self.deadline_ms or ()):
            raise ConfigError("--deadline-ms is the time that a query has: give more than 0")
        deadlines = tuple([one / 1e3 for one in self.deadline_ms or ()])
        return replanning.Plan(self.requests, deadlines, self.rate, seed)

    def __str__(self) -> str:
        pace = f"{self.rate:g} a second" if self.rate else "one after another"
        return f"{self.requests} rows a side, {pace}, split {self.split}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """How it is found out what a query takes beyond its models."""

    rounds: Annotated[int, typer.Option(min=1, help="For overhead: how often throughput is measured.")] = 5
    clients: Annotated[int, typer.Option(min=1, help="For overhead: clients that always wait.")] = overhead.CLIENTS
    caches: Annotated[
        bool,
        typer.Option(
            help="For overhead: ask learned caches, so that a step that most requests leave early costs little beside "
            "the other."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """How every side is served, on which cores."""

    backend: Backend = None
    engine_core: Core = 1
    door_core: DoorCore = 0
    other_core: Annotated[
        int | None,
        typer.Option(help="For overhead: the core of a second worker. Default: that of door and client."),
    ] = None
    awake: Awake = False
    seed: Seed = 0

    def setting(self) -> Setting:
        """Return it in the words of the measurement."""
        return Setting((self.engine_core,), (self.door_core,), backend=self.backend, seed=self.seed)

    @property
    def own_cores(self) -> tuple[int, int]:
        """A core for each of two workers."""
        return self.engine_core, self.door_core if self.other_core is None else self.other_core


def queries_live(
    repository: Repository,
    *,
    data: Annotated[str, typer.Option(help="Rows to send, with labels: an .npz file or package.module:function.")],
    data_option: DataOption = None,
    query: Annotated[str | None, typer.Option(help="Which query of the folder. Default: the only one.")] = None,
    part: Annotated[
        list[Part] | None,
        typer.Option(
            help="replanning: learned caches and planning again against neither; overhead: the query against its "
            "models alone. May be repeated. Default: both."
        ),
    ] = None,
    asking: Asking,
    beyond: Beyond,
    engines: Engines,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare how a query's models are picked, on live engines, and find out what a query takes beyond its models.

    `static` has no learned caches and picks all models as the query comes; `replanned` splits the deadline likewise,
    but picks each model as its step begins, by what learned caches have saved; `expected` picks by expected accuracy.
    All are asked for the same rows, in blocks in turn. Nothing is refused or dropped for being late, so that every row
    counts on every side; who was late is counted. Differences are paired by row, with 95 % intervals.

    `overhead` has learned caches with `--caches`. A query on one worker runs all of its steps on the same core, so it
    carries no more than its models one after another, which the last line of its table says, by the clock and by CPU
    time, which others on the machine change less. With a worker and a core for each step it is held against each step
    alone on the same workers, and against the slower one alone on one worker: who has more cores than that has an easy
    bar, and where steps are not alike workers share the longer one. The last table says from which length of steps on
    a query carries 0.95 of them, if what it takes beyond them does not change with it. Batches are as large as models
    take with as many `--clients` as an engine has slots, 64.

    Examples:

    * `latebind bench queries-live out/query/models --data examples.query.scenes:unseen --data-option data=cifar10/`
    * `latebind bench queries-live out/query/models --part overhead --data examples.query.scenes:unseen`
    """
    with reporting(), kept_awake(engines.awake), pinned((engines.door_core,)):
        plan, setting = asking.plan(engines.seed), engines.setting()
        inputs, labels = load_rows(data, data_option)
        if labels is None:
            raise ConfigError(f"--data {data!r} gives no labels: accuracy is what sides differ in")
        served = find_query(repository, query)
        asked = Asked(served, Rows(inputs, labels), plan, setting, asking.split, beyond, engines.own_cores)
        console.print(f"{served.name}: {asking}, seed {engines.seed}")
        found = tell_parts(part or Part, RUN, asked)
        write_page(page, "A query on live engines", PAGE_TEXT, found.values())
    tables = {one: {"tables": told.tables, "raw": told.raw} for one, told in found.items()}
    save(json_file, {"query": served.name, "setting": asdict(setting), **tables})


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, and of which query."""

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
        f"one worker, {asked.beyond.clients} clients that always wait": report.throughput_rows(
            found.one, found.shares, asked.plan.seed
        ),
        "a worker and a core for each step, as many clients": report.own_core_rows(found, asked.plan.seed),
        f"from which length of steps on the query carries {report.HELD} of them": report.length_rows(
            found, asked.plan.seed
        ),
    }
    return Told(tables, raw={"one worker": asdict(found.one), "a worker for each step": asdict(found.each)})


RUN: ByPart[Part, Asked] = {
    Part.REPLANNING: _replanning,
    Part.OVERHEAD: _overhead,
}
