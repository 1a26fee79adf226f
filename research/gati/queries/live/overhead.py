"""Measures what a query costs beyond its models, and its throughput beside theirs: one worker, or one for each step."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random
from time import process_time

from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import cpu_seconds
from research.gati.queries.live.asked import Asked, Call, Rows
from research.gati.queries.live.replanning import BLOCK, begun
from research.gati.queries.live.sides import BEST, Served, Setting

CLIENTS = 16
QUERY, BY_CLIENTS = "query", "its models, called by clients"

Path = tuple[str, ...]  # the models that a query runs for a row, in order


@dataclass(slots=True)
class Carried:
    """What an engine answers a second with always enough to do, by what it is asked for, one figure a round.

    `cpu` are the seconds of its cores that an answer took meanwhile, `outside` those of this process, which is door and
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
    own_cores: tuple[int, ...] = (),
) -> Overhead:
    """Measure latencies one after another, then throughput, `rounds` times; at most `requests` rows each time.

    Learned caches are asked only where that is wanted. Another engine has a worker for each step, on `own_cores`.
    """
    side = replace(BEST, exits=caches)
    async with AsyncExitStack() as stack:
        tell("starting engines", 0.0)
        asked = await begun(stack, served, side, rows, setting)
        for step in asked.models[served.name].steps:
            for model in step.models:
                rows.check(asked.models[model])
        random, found = Random(setting.seed), Overhead()
        some = range(min(requests, rows.count))
        tell("finding out which models answer", 0.0)
        paths = [path_of(call) for call in await asked.one_by_one(served.name, some)]
        steps = max(map(len, paths))
        found.shares = tuple([sum([len(path) > number for path in paths]) / len(paths) for number in range(steps)])
        for start in range(0, len(some), BLOCK):
            tell("latency", 0.4 * start / len(some))
            await _latencies(asked, served.name, some[start : start + BLOCK], paths, random, found)
        several = replace(setting, workers=steps, engine_cores=own_cores)
        others = await begun(stack, served, side, rows, several)
        kinds = _kinds(served.name, paths)
        without_clients = {kind: asked_for for kind, asked_for in kinds.items() if kind != BY_CLIENTS}
        for number in in_rounds(rounds):
            tell("throughput", 0.5 + 0.5 * number / rounds)
            await _throughput(asked, kinds, clients, random, found.one)
            await _throughput(others, without_clients, clients, random, found.each)
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


def _kinds(query: str, paths: Sequence[Path]) -> dict[str, Sequence[Path]]:
    """Return what is asked for, row by row."""
    steps = range(max(map(len, paths)))
    alone = {step_name(number): [path[number : number + 1] for path in paths if len(path) > number] for number in steps}
    return {QUERY: [(query,)] * len(paths), BY_CLIENTS: paths, **alone}


async def _throughput(
    asked: Asked, kinds: Mapping[str, Sequence[Path]], clients: int, random: Random, carried: Carried
) -> None:
    for kind in random.sample(sorted(kinds), len(kinds)):
        rows = kinds[kind]
        inside, outside = cpu_seconds(asked.process), process_time()
        carried.through.setdefault(kind, []).append(await asked.saturated(rows, clients))
        carried.cpu.setdefault(kind, []).append((cpu_seconds(asked.process) - inside) / len(rows))
        carried.outside.setdefault(kind, []).append((process_time() - outside) / len(rows))


def step_name(number: int) -> str:
    """Return what the models of a step alone are called."""
    return f"step {number + 1} alone"


def path_of(call: Call) -> Path:
    """Return the models that a query ran, in order."""
    return tuple([step.model for step in call.steps])
