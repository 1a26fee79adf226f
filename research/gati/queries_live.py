"""Queries on live engines: planners with and without learned caches, and what a query costs beyond its models.

Every side has an engine of its own. All are sent the same rows, in blocks that take turns. Nothing is refused or
dropped for being late: that is counted. Differences are paired row by row.

Deadlines, where none are given, are such that saved time can buy a better answer, found by asking this machine at this
minute. The latencies of the models alone do not show them: a plan that is made beforehand uses the engine's costs, and
on a machine that others use, clients see longer latencies than the plan has.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np

from latebind.bench.client import past
from latebind.bench.report import MARKED, Plot, blank
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import cpu_seconds
from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.bench.subject import Setting
from latebind.cli.console import Row
from latebind.cli.console import Rows as TableRows
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.query import PlannerConfig, Query
from latebind.learned.stored import read_accuracies
from latebind.queries.file.definition import query_name, read_query
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_queries, find_served
from research.evaluation import Found
from research.live import Asked, Call, Rows, started
from research.requests import PATIENCE
from research.sides import Figures, Side

STATIC, REPLANNED, EXPECTED = "static", "replanned", "expected"
PLANNED = re.compile(r"(planner|replan|price)\s*=")
UNSHED = PolicyConfig(shed=False)
SLOTS = 64
BLOCK = 25  # rows that a side is asked for in turn
WARM_UP = 60
TIMED = 100  # rows by which models are timed
CLIENTS = 16
SELDOM = 0.1  # of the rows with a choice: as many may have the best models where a plan does not reach them
PROBED = 24  # rows at a deadline that is tried
HALVINGS = 8
BETWEEN = (0.25, 0.5, 0.75)  # places of the deadlines within the saved time, which ends at `reached`
NARROWEST = 0.04  # share of `reached` over which deadlines are spread at least: closer ones show the same
QUERY, BY_CLIENTS = "query", "its models, called by clients"
MOST = "its steps alone, added: the most that these workers could carry"
SLOWER = "the slower step alone"

Ran = tuple[str, ...]  # the models that a query runs for a row, in order


@dataclass(frozen=True, slots=True)
class Served:
    """A query and the directories of its models."""

    file: Path
    directories: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return query_name(self.file)


def sides(split: str) -> dict[str, Side]:
    """Return the sides that are compared if the deadline is split by `split`: equal or proportional."""
    return {
        STATIC: Side(STATIC, UNSHED, planner=PlannerConfig(split, replan=False)),
        REPLANNED: Side(REPLANNED, UNSHED, planner=PlannerConfig(split), exits=True),
        EXPECTED: Side(EXPECTED, UNSHED, planner=PlannerConfig(), exits=True),
    }


def find_query(repository: Path, name: str | None) -> Served:
    """Return a query of a folder, the only one where none is named. Raises `ConfigError` where there is none."""
    there = {query_name(file): file for file in find_queries(repository)}
    if name is None and len(there) != 1:
        raise ConfigError(f"{repository} has {len(there)} queries ({', '.join(there)}): name one with --query")
    name = name or next(iter(there))
    if name not in there:
        raise ConfigError(f"there is no query {name!r} in {repository}; queries there: {', '.join(there) or 'none'}")
    directories, _ = find_served(repository, [name])
    return Served(there[name], tuple(directories))


@contextmanager
def planned(file: Path, planner: PlannerConfig) -> Iterator[Path]:
    """Write the query with another planner into a folder of its own, which exists inside the block."""
    with TemporaryDirectory(prefix="latebind-") as folder:
        copy = Path(folder) / file.name
        copy.write_text(with_planner(file.read_text(encoding="utf-8"), planner), encoding="utf-8")
        yield copy


def with_planner(text: str, planner: PlannerConfig) -> str:
    """Return the text of a query file with this planner instead of its own. Its keys stand before the first table."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    kept = [line for line in lines[:first] if not PLANNED.match(line.strip())]
    keys = [f'planner = "{planner.name}"', f"replan = {str(planner.replan).lower()}"]
    keys += [f"price = {planner.price}"] if planner.price is not None else []
    return "\n".join([*keys, *kept, *lines[first:], ""])


async def begun(
    stack: AsyncExitStack, served: Served, side: Side, rows: Rows, setting: Setting, cores: tuple[int, ...] = ()
) -> Asked:
    """Start an engine with a query and its models, which ends with the stack, and warm it up."""
    assert side.planner is not None
    with planned(served.file, side.planner) as file:
        engine = await started(stack, served.directories, side, setting, cores=cores, slots=SLOTS, queries=(file,))
    asked = Asked(engine, rows)
    rows.check(asked.models[served.name])
    await asked.one_by_one(served.name, [number % rows.count for number in range(WARM_UP)])
    return asked


def query_of(asked: Asked, served: Served) -> Query:
    """Return the query that is asked for, as it is planned."""
    models = {name: spec for name, spec in asked.models.items() if not spec.steps}
    return read_query(served.file, models, read_accuracies(map(ModelDirectory.open, served.directories))).query


# Replanning -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked: `requests` of each side at each of `deadlines` (seconds; none: those of `useful_deadlines`).

    One after another, or at `rate` a second on average.
    """

    requests: int
    deadlines: tuple[float, ...] = ()
    rate: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds (medians) of each model by itself in the engine, and what a query takes `beyond` them at the client.

    Up to the deadline `reached` a plan made beforehand seldom picks the best models; learned caches `saved` so much.
    """

    models: Mapping[str, float]
    beyond: float
    reached: float
    saved: float


@dataclass(slots=True)
class Replanned:
    """What became of requests, by deadline in seconds and side; the same rows in the same order for all."""

    timed: Timed
    calls: dict[float, dict[str, list[Call]]] = field(default_factory=dict)

    def found(self, seed: int) -> Found:
        """Return the tables, and accuracy against mean latency as a plot."""
        tables = {"models by themselves, to their ends": model_rows(self.timed)}
        for deadline, calls in self.calls.items():
            tables[f"due after {deadline * 1e3:.3f} ms"] = side_rows(calls, deadline, seed)
        return Found({**tables, "which models answered": chosen_rows(self.calls)}, lambda: [_trade(self.calls)])


async def replanning(
    served: Served, compared: Mapping[str, Side], rows: Rows, plan: Plan, setting: Setting, tell: Progress
) -> Replanned:
    """Ask all sides, STATIC and REPLANNED among them, in turn and in blocks; each time it is drawn who is first."""
    async with AsyncExitStack() as stack:
        tell("starting engines", 0.0)
        asked = {name: await begun(stack, served, side, rows, setting) for name, side in compared.items()}
        tell("finding out where saved time can matter", 0.0)
        query = query_of(asked[STATIC], served)
        timed = await times(asked[STATIC], asked[REPLANNED], served, rows)
        found = Replanned(timed)
        deadlines = plan.deadlines or between(timed.reached, timed.saved, slower(query, timed.models))
        for number, deadline in enumerate(deadlines):

            def part(text: str, share: float, number: int = number) -> None:
                tell(text, (number + share) / len(deadlines))

            found.calls[deadline] = await _at(deadline, asked, served.name, rows, plan, part)
        return found


async def _at(
    deadline: float, asked: Mapping[str, Asked], query: str, rows: Rows, plan: Plan, tell: Progress
) -> dict[str, list[Call]]:
    random, found = Random(f"{plan.seed} {deadline}"), {name: list[Call]() for name in asked}
    for start in range(0, plan.requests, BLOCK):
        block = [number % rows.count for number in range(start, min(start + BLOCK, plan.requests))]
        arrivals: list[float] = []
        while plan.rate and len(arrivals) < len(block):
            arrivals = past(2.0 * len(block) / plan.rate, plan.rate, random)
        tell(f"{deadline * 1e3:.2f} ms", start / plan.requests)
        for name in random.sample(list(asked), len(asked)):
            if arrivals:
                sent = [(at, query) for at in arrivals[: len(block)]]
                found[name] += await asked[name].play(sent, rows=block, allowed=deadline)
            else:
                found[name] += await asked[name].one_by_one(query, block, allowed=deadline)
    return found


async def times(asked: Asked, cached: Asked, served: Served, rows: Rows) -> Timed:
    """Ask for each model of a query by itself, to the end of its network, and for the query; `cached` has caches."""
    query, some = query_of(asked, served), range(min(TIMED, rows.count))
    names = dict.fromkeys(model for node in query.nodes for model in node.models)
    calls = {name: await asked.one_by_one(name, some) for name in names}
    models = {name: median([call.inside for call in found]) for name, found in calls.items()}
    queries = await asked.one_by_one(served.name, some)
    beyond = median([call.seconds - sum([models[step.model] for step in call.steps]) for call in queries])
    whole = beyond + longest(query, [max([models[model] for model in node.models]) for node in query.nodes])
    saved: list[float] = []
    for start in range(0, len(some), BLOCK):
        without, caches = [await one.one_by_one(served.name, some[start : start + BLOCK]) for one in (asked, cached)]
        saved += [a.inside - b.inside for a, b in zip(without, caches, strict=True)]
    return Timed(models, beyond, await reached(asked, served, query, some, whole), max(0.0, fmean(saved)))


def slower(query: Query, models: Mapping[str, float]) -> float:
    """Return by how much the longest path takes longer with the slowest model of each step than with the next."""
    seconds = [sorted([models[model] for model in node.models]) for node in query.nodes]
    return longest(query, [some[-1] for some in seconds]) - longest(query, [some[-2:][0] for some in seconds])


def longest(query: Query, seconds: Sequence[float]) -> float:
    """Return the seconds of the longest path, where each node takes so many."""
    ends: list[float] = []
    for node, taken in zip(query.nodes, seconds, strict=True):
        ends.append(taken + max([ends[i] for i in node.after], default=0.0))
    return max(ends)


async def reached(asked: Asked, served: Served, query: Query, rows: Sequence[int], first: float) -> float:
    """Return the longest deadline, in seconds, at which the best models are seldom picked, searched from `first`.

    It is `first` where no step has a choice.
    """
    some, best = rows[:PROBED], best_models(query)
    if not best:
        return first

    async def reaches(deadline: float) -> bool:
        return share_of(await asked.one_by_one(served.name, some, allowed=deadline), best) > SELDOM

    low, high = 0.0, first
    while high < PATIENCE and not await reaches(high):
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if await reaches(middle) else (middle, high)
    return low


def between(reached: float, saved: float, slower: float) -> tuple[float, ...]:
    """Return deadlines shortly before `reached`, so that a plan made beforehand cannot pick the best models yet.

    They lie within the `saved` seconds before it, and within `slower`, by which the slowest models exceed the next.
    """
    width = max(min(saved, slower) or slower, NARROWEST * reached)
    return tuple([reached - (1.0 - share) * width for share in BETWEEN])


def best_models(query: Query) -> Mapping[str, str]:
    """Return the most accurate model of each step that has a choice."""
    return {
        node.name: max(zip(node.accuracies, node.models, strict=True))[1]
        for node in query.nodes
        if len(node.models) > 1
    }


def share_of(calls: Sequence[Call], best: Mapping[str, str]) -> float:
    """Return the share of runs of steps with a choice in which the best model answered; 1 where there were none."""
    picked = [step.model == best[step.step] for call in calls for step in call.steps if step.step in best]
    return fmean(picked) if picked else 1.0


def model_rows(timed: Timed) -> TableRows:
    """Return the latency of each model alone, and what the way to the engine and back adds."""
    more = {
        "(the query, beyond its models)": timed.beyond,
        "(saved by learned caches, on average)": timed.saved,
        "(deadline up to which a plan seldom reaches the best)": timed.reached,
    }
    return [{"model": what, "median ms in the engine": _ms(each)} for what, each in {**timed.models, **more}.items()]


def side_rows(sides: Mapping[str, Sequence[Call]], deadline: float, seed: int) -> TableRows:
    """Return accuracy, latency and violations of each side at one deadline, beside those of `static`."""
    return [
        {
            "side": name,
            "accuracy": f"{_right(calls).mean():.4f}",
            "points more than static": _points(_right(calls) - _right(sides[STATIC]), seed),
            "mean ms": _ms(_seconds(calls).mean()),
            "ms more than static": _more(_seconds(calls) - _seconds(sides[STATIC]), seed),
            "times as fast": str(ratio_of_means(_seconds(sides[STATIC]), _seconds(calls), block=BLOCK, seed=seed)),
            "p99": _ms(np.percentile(_seconds(calls), 99)),
            "late": f"{(_seconds(calls) > deadline).mean():.1%}",
            "right in time": f"{(_right(calls) * (_seconds(calls) <= deadline)).mean():.4f}",
        }
        for name, calls in sides.items()
    ]


def chosen_rows(by_deadline: Mapping[float, Mapping[str, Sequence[Call]]]) -> TableRows:
    """Return which models answered each step, and how often one left before its last stage."""
    rows: TableRows = []
    for deadline, compared in by_deadline.items():
        for name, calls in compared.items():
            runs = Counter(step.step for call in calls for step in call.steps)
            early = Counter(
                step.step for call in calls for step, e in zip(call.steps, call.steps_early, strict=True) if e
            )
            row: Row = {"deadline ms": _ms(deadline), "side": name}
            for one in runs:
                models = Counter(step.model for call in calls for step in call.steps if step.step == one)
                row[one] = {model: count / runs[one] for model, count in sorted(models.items())}
            rows.append(row | {"left early": {one: count / runs[one] for one, count in early.items()}})
    return rows


def _trade(by_deadline: Mapping[float, Mapping[str, Sequence[Call]]]) -> Plot:
    """Draw accuracy against mean latency, a point for each deadline and a line for each side."""
    x = {"title": "mean latency, ms", "rangemode": "tozero"}
    y = {"title": "share of right answers", "tickformat": ".0%"}
    figure = blank("Accuracy against latency, by deadline", x=x, y=y)
    for side in next(iter(by_deadline.values())):
        calls = [compared[side] for compared in by_deadline.values()]
        figure.add_scatter(
            x=[_seconds(some).mean() * 1e3 for some in calls],
            y=[_right(some).mean() for some in calls],
            text=[f"due after {deadline * 1e3:.3f} ms" for deadline in by_deadline],
            name=side,
            mode=MARKED,
        )
    return figure


# What a query costs beyond its models --------------------------------------------------------------------------------


@dataclass(slots=True)
class Carried:
    """What an engine answers a second with always enough to do, by what it is asked for, one figure a round.

    `cpu` are the seconds of its cores that an answer took meanwhile, `outside` those of this process, the frontend and
    clients: both change less with others on the machine.
    """

    through: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    outside: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Overhead:
    """The same rows in the same order: asked for as a query, and model by model in the order in which it ran them.

    Of `one` worker and of a worker for `each` step: what they carry of the query and of the models of each step alone,
    and the one also of clients that ask for its models themselves. `shares` of the rows run each step.
    """

    query: list[Call] = field(default_factory=list)
    models: list[list[Call]] = field(default_factory=list)
    one: Carried = field(default_factory=Carried)
    each: Carried = field(default_factory=Carried)
    shares: tuple[float, ...] = ()

    def found(self, seed: int) -> Found:
        """Return the tables."""
        return Found(
            {
                "a query against its models, one after another": latency_rows(self, seed),
                "throughput of clients that always wait": throughput_rows(self, seed),
                "CPU time of an answer, least of the rounds": cpu_rows(self),
            }
        )


async def overhead(
    served: Served,
    rows: Rows,
    setting: Setting,
    tell: Progress,
    *,
    requests: int,
    rounds: int,
    caches: bool = False,
    clients: int = CLIENTS,
    own_cores: tuple[int, ...] = (),
) -> Overhead:
    """Measure latencies one after another, then throughput, `rounds` times; at most `requests` rows each time.

    Learned caches are asked only where that is wanted. Another engine has a worker for each step, on `own_cores`. With
    much time the planner picks the most accurate model of each step.
    """
    best = Side("best", UNSHED, planner=PlannerConfig(price=0.0), exits=caches)
    async with AsyncExitStack() as stack:
        tell("starting engines", 0.0)
        asked = await begun(stack, served, best, rows, setting)
        for step in asked.models[served.name].steps:
            for model in step.models:
                rows.check(asked.models[model])
        random, found = Random(setting.seed), Overhead()
        some = range(min(requests, rows.count))
        paths = [tuple([step.model for step in call.steps]) for call in await asked.one_by_one(served.name, some)]
        steps = max(map(len, paths))
        found.shares = tuple([sum([len(path) > number for path in paths]) / len(paths) for number in range(steps)])
        for start in range(0, len(some), BLOCK):
            tell("latency", 0.4 * start / len(some))
            block = some[start : start + BLOCK]
            for as_query in random.sample((True, False), 2):
                if as_query:
                    found.query += await asked.one_by_one(served.name, block)
                else:
                    found.models += [[await asked.call(name, row) for name in paths[row]] for row in block]
        several = replace(best, workers=steps)
        others = await begun(stack, served, several, rows, setting, own_cores)
        kinds: dict[str, Sequence[Ran]] = {QUERY: [(served.name,)] * len(paths), BY_CLIENTS: paths}
        alone = {step_name(n): [path[n : n + 1] for path in paths if len(path) > n] for n in range(steps)}
        for number in in_rounds(rounds):
            tell("throughput", 0.5 + 0.5 * number / rounds)
            await _throughput(asked, {**kinds, **alone}, clients, random, found.one)
            await _throughput(others, {QUERY: kinds[QUERY], **alone}, clients, random, found.each)
        return found


async def _throughput(
    asked: Asked, kinds: Mapping[str, Sequence[Ran]], clients: int, random: Random, carried: Carried
) -> None:
    for kind in random.sample(sorted(kinds), len(kinds)):
        rows, process = kinds[kind], asked.engine.process_id
        inside, outside = cpu_seconds(process), process_time()
        took = await asked.saturate(iter(enumerate(rows)), len(rows) - 2 * clients, clients)
        carried.through.setdefault(kind, []).append(1.0 / took)
        carried.cpu.setdefault(kind, []).append((cpu_seconds(process) - inside) / len(rows))
        carried.outside.setdefault(kind, []).append((process_time() - outside) / len(rows))


def step_name(number: int) -> str:
    """Return what the models of a step alone are called."""
    return f"step {number + 1} alone"


def latency_rows(found: Overhead, seed: int) -> TableRows:
    """Return mean latencies of the query and of its models one after another, and the difference."""
    rows: TableRows = []
    for where, query, models in (
        ("at the client", _seconds(found.query), _sums(found, inside=False)),
        ("in the engine", np.array([call.inside for call in found.query]), _sums(found, inside=True)),
    ):
        rows.append(
            {
                "seconds": where,
                "query, mean ms": _ms(query.mean()),
                "its models, added, mean ms": _ms(models.mean()),
                "ms more": _more(query - models, seed),
                "times": str(ratio_of_means(query, models, block=BLOCK, seed=seed)),
                "median ms more": _ms(np.median(query) - np.median(models)),
            }
        )
    return rows


def throughput_rows(found: Overhead, seed: int) -> TableRows:
    """Return what the query carries, and its ratio to its steps: on one worker, and on a worker for each step.

    Workers that run all steps carry no more than 1 / (1/a + 1/b), where a and b a second are what they carry of each
    step alone. The query on a worker for each step is also held against the slower step on one worker, and on as many.
    """
    one, each, shares = _arrays(found.one.through), _arrays(found.each.through), found.shares
    slower = min(map(step_name, range(len(shares))), key=lambda name: float(one[name].mean()))
    own = len(shares)
    return [
        _carried_row(QUERY, 1, one[QUERY], one[QUERY], seed),
        _carried_row(BY_CLIENTS, 1, one[QUERY], one[BY_CLIENTS], seed),
        _carried_row(MOST, 1, one[QUERY], 1.0 / _of_steps(_seconds_each(one), shares), seed),
        _carried_row(QUERY, own, each[QUERY], each[QUERY], seed),
        _carried_row(SLOWER, 1, each[QUERY], one[slower], seed),
        _carried_row(SLOWER, own, each[QUERY], each[slower], seed),
        _carried_row(MOST, own, each[QUERY], 1.0 / _of_steps(_seconds_each(each), shares), seed),
    ]


def cpu_rows(found: Overhead) -> TableRows:
    """Return the CPU time of an answer, of engine, frontend and clients: other load changes it less than rates.

    The least of the rounds is closest to what an answer takes.
    """
    rows: TableRows = []
    for workers, carried in ((1, found.one), (len(found.shares), found.each)):
        names = [QUERY, *map(step_name, range(len(found.shares)))]
        rows += [
            {
                "asked for": name,
                "workers": workers,
                "engine, ms": _ms(min(carried.cpu[name])),
                "frontend and clients, ms": _ms(min(carried.outside[name])),
            }
            for name in names
        ]
    return rows


def _carried_row(what: str, workers: int, query: Figures, rates: Figures, seed: int) -> Row:
    return {
        "asked for": what,
        "workers": workers,
        "answers a second": round(float(rates.mean()), 1),
        "the query has of it": "" if what == QUERY else str(ratio_of_means(query, rates, seed=seed)),
    }


def _of_steps(seconds: Mapping[str, Figures], shares: Sequence[float]) -> Figures:
    """Return what the steps of a query take together, of which each counts by how many rows run it."""
    total: Figures = np.sum([share * seconds[step_name(number)] for number, share in enumerate(shares)], axis=0)
    return total


def _seconds_each(through: Mapping[str, Figures]) -> dict[str, Figures]:
    return {name: 1.0 / rates for name, rates in through.items()}


def _arrays(figures: Mapping[str, Sequence[float]]) -> dict[str, Figures]:
    return {name: np.array(values) for name, values in figures.items()}


def _sums(found: Overhead, *, inside: bool) -> Figures:
    return np.array([sum(call.inside if inside else call.seconds for call in calls) for calls in found.models])


def _right(calls: Sequence[Call]) -> Figures:
    return np.array([call.right for call in calls], np.float64)


def _seconds(calls: Sequence[Call]) -> Figures:
    return np.array([call.seconds for call in calls])


def _points(values: Figures, seed: int) -> str:
    return mean_interval(100.0 * values, block=BLOCK, seed=seed).written("+.2f")


def _more(values: Figures, seed: int) -> str:
    return mean_interval(1e3 * values, block=BLOCK, seed=seed).written("+.3f")


def _ms(seconds: float | np.floating[Any]) -> float:
    return round(float(seconds) * 1e3, 3)
