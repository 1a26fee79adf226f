"""Queries on live engines: the planners of `queries.py`, on a query that was built.

Every side has an engine of its own. All are sent the same rows, in blocks that take turns. Nothing is refused or
dropped for being late: that is counted. Differences are paired row by row.

Deadlines, where none are given, are such that saved time can buy a better answer, found by asking this machine at this
minute. The latencies of the models alone do not show them: a plan that is made beforehand uses the engine's costs, and
on a machine that others use, clients see longer latencies than the plan has.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np

from latebind.bench.client import past
from latebind.bench.rounds import Progress
from latebind.bench.subject import Setting
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.query import PlannerConfig, Query
from latebind.learned.metadata import read_accuracies
from latebind.queries.file.definition import query_name, read_query
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_queries, find_served
from research.evaluation import Found
from research.gati.queries import Played, replanned, side_rows, static, trade
from research.live import PATIENCE, Asked, Call, Rows, started
from research.sides import Side

UNSHED = PolicyConfig(shed=False)
BASE, OURS = static("proportional"), replanned("proportional")  # which always take part
PLANNED = re.compile(r"(planner|replan)\s*=")
SLOTS = 64
BLOCK = 25  # rows that a side is asked for in turn
WARM_UP = 60
TIMED = 100  # rows by which is found what caches save
SELDOM = 0.1  # of the rows with a choice: as many may have the best models where a plan does not reach them
PROBED = 24  # rows at a deadline that is tried
HALVINGS = 8
BETWEEN = (0.25, 0.5, 0.75)  # places of the deadlines within the saved time, which ends at the last one not reached
NARROWEST = 0.04  # share of that over which deadlines are spread at least: closer ones show the same


@dataclass(frozen=True, slots=True)
class Served:
    """A query and the directories of its models."""

    file: Path
    directories: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name that clients ask for."""
        return query_name(self.file)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked: `requests` of each side at each of `deadlines` (seconds; none: useful ones).

    One after another, or at `rate` a second on average.
    """

    requests: int
    deadlines: tuple[float, ...] = ()
    rate: float = 0.0
    seed: int = 0


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


def with_planner(text: str, planner: PlannerConfig) -> str:
    """Return the text of a query file with this planner instead of its own. Its keys stand before the first table."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    kept = [line for line in lines[:first] if not PLANNED.match(line.strip())]
    keys = [f'planner = "{planner.name}"', f"replan = {str(planner.replan).lower()}"]
    return "\n".join([*keys, *kept, *lines[first:], ""])


async def begun(stack: AsyncExitStack, served: Served, side: Side, rows: Rows, setting: Setting) -> Asked:
    """Start an engine with a query, planned as the side says, and its models; it is warm and ends with the stack."""
    assert side.planner is not None
    with TemporaryDirectory(prefix="latebind-") as folder:
        file = Path(folder) / served.file.name
        file.write_text(with_planner(served.file.read_text(encoding="utf-8"), side.planner), encoding="utf-8")
        engine = await started(stack, served.directories, side, setting, slots=SLOTS, queries=(file,))
    asked = Asked(engine, rows)
    await asked.one_by_one(served.name, [number % rows.count for number in range(WARM_UP)])
    return asked


async def replanning(
    served: Served, sides: Mapping[str, Side], rows: Rows, plan: Plan, setting: Setting, on_progress: Progress
) -> Found:
    """Ask all sides in turn and in blocks; each time it is drawn who is first."""
    found: dict[str, dict[str, Played]] = {}
    async with AsyncExitStack() as stack:
        on_progress("starting engines", 0.0)
        asked = {name: await begun(stack, served, side, rows, setting) for name, side in sides.items()}
        on_progress("finding out where saved time can matter", 0.0)
        deadlines = plan.deadlines or await useful(asked[BASE], asked[OURS], served, rows)
        for number, deadline in enumerate(deadlines):
            random, calls = Random(f"{plan.seed} {deadline}"), {name: list[Call]() for name in asked}
            for start in range(0, plan.requests, BLOCK):
                on_progress(f"{deadline * 1e3:.2f} ms", (number + start / plan.requests) / len(deadlines))
                block = [row % rows.count for row in range(start, min(start + BLOCK, plan.requests))]
                times = _times(len(block), plan.rate, random)
                for name in random.sample(list(asked), len(asked)):
                    if plan.rate:
                        sent = [(at, served.name) for at in times]
                        calls[name] += await asked[name].play(sent, rows=block, allowed=deadline)
                    else:
                        calls[name] += await asked[name].one_by_one(served.name, block, allowed=deadline)
            found[f"due after {deadline * 1e3:.3f} ms"] = {name: played(some, deadline) for name, some in calls.items()}
    tables = {title: side_rows(by_side, block=BLOCK, seed=setting.seed) for title, by_side in found.items()}
    return Found(tables, lambda: [trade(found)])


def _times(count: int, rate: float, random: Random) -> list[float]:
    found: list[float] = []
    while rate and len(found) < count:
        found = past(2.0 * count / rate, rate, random)
    return found[:count]


def played(calls: Sequence[Call], deadline: float) -> Played:
    """Return what came of calls, and which models answered each step."""
    seconds = np.array([call.seconds if call.answered else np.nan for call in calls])
    right = np.array([float(call.right and call.seconds <= deadline) for call in calls])
    runs = Counter((step.step, step.model) for call in calls for step in call.steps)
    totals = Counter(step.step for call in calls for step in call.steps)
    return Played(
        right,
        seconds,
        deadline,
        {one: {model: n / totals[one] for (step, model), n in sorted(runs.items()) if step == one} for one in totals},
    )


async def useful(asked: Asked, cached: Asked, served: Served, rows: Rows) -> tuple[float, ...]:
    """Return three deadlines shortly before those by which a plan made beforehand picks the best models.

    They lie within the time that learned caches save on average.
    """
    some, saved = range(min(TIMED, rows.count)), list[float]()
    for start in range(0, len(some), BLOCK):
        without, caches = [await one.one_by_one(served.name, some[start : start + BLOCK]) for one in (asked, cached)]
        saved += [a.inside - b.inside for a, b in zip(without, caches, strict=True)]
    specs = {name: spec for name, spec in asked.models.items() if not spec.steps}
    query = read_query(served.file, specs, read_accuracies(map(ModelDirectory.open, served.directories))).query
    last = await reached(asked, query, some, fmean(call.seconds for call in without))
    width = max(fmean(saved), NARROWEST * last)
    return tuple([last - (1.0 - share) * width for share in BETWEEN])


async def reached(asked: Asked, query: Query, rows: Sequence[int], first: float) -> float:
    """Return the longest deadline, in seconds, at which the best models are seldom picked, searched from `first`.

    It is `first` where no step has a choice.
    """
    best = {
        node.name: max(zip(node.accuracies, node.models, strict=True))[1] for node in query.nodes if node.models[1:]
    }
    if not best:
        return first

    async def reaches(deadline: float) -> bool:
        calls = await asked.one_by_one(query.name, rows[:PROBED], allowed=deadline)
        picked = [step.model == best[step.step] for call in calls for step in call.steps if step.step in best]
        return not picked or fmean(picked) > SELDOM

    low, high = 0.0, first
    while high < PATIENCE and not await reaches(high):
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if await reaches(middle) else (middle, high)
    return low
