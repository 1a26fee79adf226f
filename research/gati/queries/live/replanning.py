"""Sends the same pictures to a query with several planners, at several deadlines: accuracy, latency, violations."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from statistics import median

from latebind.bench.client import past
from latebind.bench.rounds import Progress
from latebind.domain.query import Query
from research.gati.queries.live.asked import Asked, Call, Rows
from research.gati.queries.live.sides import REPLANNED, STATIC, Served, Setting, Side, started
from research.gati.queries.live.useful_deadlines import BETWEEN, between, reached, saved

BLOCK = 25  # rows that a side is asked for in turn
WARM_UP = 60
TIMED = 100  # rows by which models are timed


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
class Found:
    """What became of requests, by deadline in seconds and side; the same rows in the same order for all."""

    timed: Timed
    calls: dict[float, dict[str, list[Call]]] = field(default_factory=dict)


async def run(
    served: Served, sides: Mapping[str, Side], rows: Rows, plan: Plan, setting: Setting, tell: Progress
) -> Found:
    """Ask all sides, STATIC and REPLANNED among them, in turn and in blocks; each time it is drawn who is first."""
    async with AsyncExitStack() as stack:
        tell("starting engines", 0.0)
        asked = {name: await begun(stack, served, side, rows, setting) for name, side in sides.items()}
        tell("finding out where saved time can matter", 0.0)
        query = asked[STATIC].query(served)
        found = Found(await times(asked[STATIC], asked[REPLANNED], served, rows))
        timed = found.timed
        deadlines = plan.deadlines or between(timed.reached, timed.saved, slower(query, timed.models))
        for number, deadline in enumerate(deadlines):
            found.calls[deadline] = await _at(deadline, asked, served.name, rows, plan, _part(tell, number, plan))
        return found


async def times(asked: Asked, cached: Asked, served: Served, rows: Rows) -> Timed:
    """Ask for each model of a query by itself, to the end of its network, and for the query; `cached` has caches."""
    query = asked.query(served)
    some = range(min(TIMED, rows.count))
    names = dict.fromkeys(model for node in query.nodes for model in node.models)
    calls = {name: await asked.one_by_one(name, some) for name in names}
    models = {name: median([call.inside for call in found]) for name, found in calls.items()}
    queries = await asked.one_by_one(served.name, some)
    beyond = median([call.seconds - sum([models[step.model] for step in call.steps]) for call in queries])
    whole = beyond + longest(query, [max([models[model] for model in node.models]) for node in query.nodes])
    return Timed(
        models,
        beyond,
        reached=await reached(asked, served, query, some, whole),
        saved=await saved(asked, cached, served, some, BLOCK),
    )


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


async def begun(stack: AsyncExitStack, served: Served, side: Side, rows: Rows, setting: Setting) -> Asked:
    """Start an engine, which ends with the stack, and warm it up."""
    engine = await started(served, side, setting)
    stack.push_async_callback(engine.close)
    asked = Asked(engine, rows)
    rows.check(asked.models[served.name])
    await asked.one_by_one(served.name, [number % rows.count for number in range(WARM_UP)])
    return asked


async def _at(
    deadline: float, asked: Mapping[str, Asked], query: str, rows: Rows, plan: Plan, tell: Progress
) -> dict[str, list[Call]]:
    random, found = Random(f"{plan.seed} {deadline}"), {name: list[Call]() for name in asked}
    for start in range(0, plan.requests, BLOCK):
        block = [number % rows.count for number in range(start, min(start + BLOCK, plan.requests))]
        arrivals = _arrivals(len(block), plan.rate, random)
        tell(f"{deadline * 1e3:.2f} ms", start / plan.requests)
        for name in random.sample(list(asked), len(asked)):
            found[name] += await _block(asked[name], query, block, arrivals, deadline)
    return found


async def _block(
    asked: Asked, query: str, block: Sequence[int], arrivals: Sequence[float], deadline: float
) -> list[Call]:
    if not arrivals:
        return await asked.one_by_one(query, block, allowed=deadline)
    return await asked.at(query, block, arrivals, allowed=deadline)


def _arrivals(count: int, rate: float, random: Random) -> list[float]:
    """Return when so many requests come; none where the next is sent as soon as the last one is answered."""
    if not rate:
        return []
    times: list[float] = []
    while len(times) < count:
        times = past(2.0 * count / rate, rate, random)
    return times[:count]


def _part(tell: Progress, number: int, plan: Plan) -> Progress:
    parts = len(plan.deadlines) or len(BETWEEN)
    return lambda text, share: tell(text, (number + share) / parts)
