"""What a query takes beyond its models, and what it carries beside them: all on one engine."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random

from latebind.bench.queries.live.asked import Asked, Call, Rows
from latebind.bench.queries.live.replanning import BLOCK, begun
from latebind.bench.queries.live.sides import BEST, Served, Setting
from latebind.bench.spread import Progress

CLIENTS = 16
QUERY, BY_CLIENTS = "query", "its models, called by clients"

Path = tuple[str, ...]  # the models that a query runs for a row, in order


@dataclass(slots=True)
class Overhead:
    """The same rows in the same order: asked for as a query, and model by model in the order in which it ran them.

    `through` are answers a second with always enough to do, one figure a round: of the query, of clients that ask for
    its models themselves, and of the models of each step alone.
    """

    query: list[Call] = field(default_factory=list)
    models: list[list[Call]] = field(default_factory=list)
    through: dict[str, list[float]] = field(default_factory=dict)


async def run(
    served: Served,
    rows: Rows,
    setting: Setting,
    tell: Progress,
    *,
    requests: int,
    rounds: int,
    clients: int = CLIENTS,
    caches: bool = False,
) -> Overhead:
    """Measure latencies one after another, then throughput, `rounds` times; at most `requests` rows each time.

    Learned caches are asked only where that is wanted.
    """
    async with AsyncExitStack() as stack:
        tell("starting the engine", 0.0)
        asked = await begun(stack, served, replace(BEST, exits=caches), rows, setting)
        for step in asked.models[served.name].steps:
            for model in step.models:
                rows.check(asked.models[model])
        random, found = Random(setting.seed), Overhead()
        some = range(min(requests, rows.count))
        tell("finding out which models answer", 0.0)
        paths = [path_of(call) for call in await asked.one_by_one(served.name, some)]
        for start in range(0, len(some), BLOCK):
            tell("latency", 0.5 * start / len(some))
            await _latencies(asked, served.name, some[start : start + BLOCK], paths, random, found)
        for number in range(rounds):
            tell("throughput", 0.5 + 0.5 * number / rounds)
            await _throughput(asked, served.name, paths, clients, random, found)
        return found


async def _latencies(
    asked: Asked, query: str, block: Sequence[int], paths: Sequence[Path], random: Random, found: Overhead
) -> None:
    """Ask for rows as a query and by the models that it runs; which is first is drawn."""

    async def as_query() -> None:
        found.query.extend(await asked.one_by_one(query, block))

    async def by_models() -> None:
        for row in block:
            found.models.append([await asked.call(name, row) for name in paths[row]])

    for ask in random.sample([as_query, by_models], 2):
        await ask()


async def _throughput(
    asked: Asked, query: str, paths: Sequence[Path], clients: int, random: Random, found: Overhead
) -> None:
    steps = max(map(len, paths))
    kinds: dict[str, Sequence[Path]] = {QUERY: [(query,)] * len(paths), BY_CLIENTS: paths}
    for number in range(steps):
        kinds[step_name(number)] = [path[number : number + 1] for path in paths if len(path) == steps]
    for kind in random.sample(list(kinds), len(kinds)):
        found.through.setdefault(kind, []).append(await asked.saturated(kinds[kind], clients))


def step_name(number: int) -> str:
    """Return what the models of a step alone are called."""
    return f"step {number + 1} alone"


def path_of(call: Call) -> Path:
    """Return the models that a query ran, in order."""
    return tuple([step.model for step in call.steps])
