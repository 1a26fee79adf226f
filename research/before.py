"""`python -m research before`: this checkout beside another one, as servers of the same models."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, suppress
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
from typer import Argument, Option

from latebind.bench.client import Body, Connections, answered, encode, past, written
from latebind.bench.rounds import Progress
from latebind.bench.server import launched, resident, tree
from latebind.bench.statistics import ratio_of_means
from latebind.child import Child
from latebind.cli.bench.options import Data, Repository, ServeWords
from latebind.cli.console import Row, reporting
from latebind.cli.options import DataOption, Seed
from latebind.cli.sources import load_rows
from latebind.domain.model import ModelSpec
from latebind.heap import settle
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research import live
from research.evaluation import Found, Load, Output, Rounds, Seconds, Words, evaluate

PATIENCE = 30.0  # seconds that a call without a deadline may take
LEAD = 0.1  # seconds until the first call is due, in which all tasks come to wait
SETTLE = 1.0  # seconds of each server's first calls that do not count
Call = tuple[str, Body]


def before(
    checkout: Annotated[Path, Argument(help="The other checkout: a folder with a `latebind` package.")],
    repository: Repository,
    *,
    model: Annotated[Words, Option(help="Take only this model of the folder; may be repeated.")] = None,
    data: Data = None,
    data_option: DataOption = None,
    clients: Annotated[list[int] | None, Option(help="How many call at a time, in a loop; may be repeated.")] = None,
    load: Load = None,
    deadline: Annotated[float, Option(min=1.0, help="A multiple of the time that one request takes alone.")] = 10.0,
    serve: ServeWords = None,
    rounds: Rounds = 6,
    seconds: Seconds = 4.0,
    seed: Seed = 0,
    output: Output,
) -> None:
    """Compare this checkout with another one: what clients of `latebind serve` get from each.

    Both serve the same models at the same time and are asked in turns: at first by clients in a loop, then at Poisson
    times, where a load is a multiple of what the other checkout answers to the most clients in a loop. Clients draw
    models and rows at random, the same for both. Ratios are above 1 where this checkout is the better one.

    Example: python -m research before ../latebind-1.0 models --clients 1 --clients 16 --load 0.8 --load 1.2
    """
    with reporting():
        specs = [read_spec_and_costs(ModelDirectory.open(path))[0] for path in find_models(repository, model)]
        rows = None if data is None else live.Rows(load_rows(data, data_option)[0])
    options = [*(word for spec in specs for word in ("--model", spec.name) if model), *(serve or ())]
    session = Session(checkout, repository, options, specs, rows, deadline, seconds, seed)

    def compare(on_progress: Progress) -> Found:
        return asyncio.run(session.compare(rounds, clients or [1, 16], load or [], on_progress))

    evaluate({"before": compare}, output)


@dataclass(frozen=True, slots=True)
class Block:
    """What one server answered in one block: `rate` answers a second in time, their mean and p99 seconds."""

    rate: float
    mean: float
    high: float


@dataclass(slots=True)
class Session:
    """Both servers, what they are asked for, and what they answered."""

    checkout: Path
    repository: Path
    options: Sequence[str]
    specs: Sequence[ModelSpec]
    rows: live.Rows | None
    deadline: float
    seconds: float
    seed: int
    servers: dict[str, Child] = field(default_factory=dict)

    async def compare(
        self, rounds: int, clients: Sequence[int], loads: Sequence[float], on_progress: Progress
    ) -> Found:
        """Ask both servers in turns, and return tables."""
        blocks: dict[str, dict[str, list[Block]]] = {}
        starts: dict[str, list[float]] = {"before": [], "now": []}
        with ExitStack() as stack:
            for _ in range(3):  # the last ones stay
                stack.close()
                for name, folder in (("before", self.checkout), ("now", Path.cwd())):
                    begun = time.perf_counter()
                    with chdir(folder):
                        self.servers[name] = stack.enter_context(
                            launched(self.repository.absolute(), *self.options, log=Path("/dev/null"))
                        )
                    starts[name].append(time.perf_counter() - begun)
            for name in self.servers:
                await self.in_a_loop(name, 1, SETTLE, Random(self.seed))
            alone = (await self.in_a_loop("before", 1, self.seconds, Random(self.seed))).mean
            highest = (await self.in_a_loop("before", max(*clients, 16), self.seconds, Random(self.seed))).rate
            kinds = [(f"{many} in a loop", many, 0.0) for many in clients]
            kinds += [(f"{load:g} of {highest:.0f} a second", 0, load * highest) for load in loads]
            for turn in range(rounds):
                for place, (kind, many, rate) in enumerate(kinds):
                    on_progress(f"{kind}, round {turn + 1}", (turn + place / len(kinds)) / rounds)
                    for name in sorted(self.servers, reverse=bool(turn % 2)):
                        random = Random(f"{self.seed} {turn} {kind}")
                        played = (
                            self.in_a_loop(name, many, self.seconds, random)
                            if many
                            else self.at_times(name, past(self.seconds, rate, random), self.deadline * alone, random)
                        )
                        blocks.setdefault(kind, {}).setdefault(name, []).append(await played)
            memory = {name: _memory(server) for name, server in self.servers.items()}
        table = [_row(kind, found["before"], found["now"]) for kind, found in blocks.items()]
        title = f"ratios over {rounds} rounds; a request alone {alone * 1e3:.2f} ms, deadlines {self.deadline:g} times"
        whole: list[Row] = [
            {"server": name, "ready after s": f"{min(starts[name]):.2f}", "MB": f"{memory[name] / 1e6:.0f}"}
            for name in memory
        ]
        return Found({title: table, "start-up (best of 3) and memory (PSS of all processes)": whole})

    def calls(self, random: Random, allowed: float) -> Iterator[Call]:
        """Draw models and rows without end."""
        rows = {spec.name: self.rows or live.Rows.made_up(spec, Random(self.seed)) for spec in self.specs}
        made: dict[tuple[str, int], Call] = {}
        while True:
            spec = random.choice(self.specs)
            row = random.randrange(rows[spec.name].count)
            if (spec.name, row) not in made:
                made[spec.name, row] = spec.name, encode(rows[spec.name].given(row, spec), timeout=allowed)
            yield made[spec.name, row]

    async def in_a_loop(self, name: str, clients: int, seconds: float, random: Random) -> Block:
        """Let so many clients ask one call after another."""
        return await in_a_loop(self.servers[name].url, clients, self.calls(random, PATIENCE), seconds)

    async def at_times(self, name: str, times: Sequence[float], allowed: float, random: Random) -> Block:
        """Send calls at these times, and wait for all answers."""
        calls = list(islice(self.calls(random, allowed), len(times)))
        return await at_times(self.servers[name].url, calls, times, allowed)


async def in_a_loop(url: str, clients: int, calls: Iterator[Call], seconds: float) -> Block:
    """Let so many clients ask a server one call after another for some seconds."""
    there, ends, taken = Connections(url), time.perf_counter() + seconds, list[float]()

    async def one() -> None:
        while time.perf_counter() < ends:
            taken.append(await _seconds_of(there, next(calls), time.perf_counter()))

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    there.close()
    return _block(taken, time.perf_counter() - begun, inf)


async def at_times(url: str, calls: Sequence[Call], times: Sequence[float], allowed: float) -> Block:
    """Send calls to a server at these times, and wait for all answers.

    The clock starts once all tasks are made and out of the collector's sight: it took 0.3 s of some blocks.
    """
    there, begun = Connections(url), 0.0

    async def one(due: float, call: Call) -> float:
        await asyncio.sleep(max(0.0, begun + due - time.perf_counter()))
        return await _seconds_of(there, call, begun + due)

    tasks = [asyncio.ensure_future(one(due, call)) for due, call in zip(times, calls, strict=True)]
    settle()
    begun = time.perf_counter() + LEAD
    taken = await asyncio.gather(*tasks)
    there.close()
    return _block(taken, times[-1], allowed)


async def _seconds_of(there: Connections, call: Call, due: float) -> float:
    """Send one call and return its seconds, infinite if it was not answered."""
    async with there.one() as connection:
        reply = await connection.ask(written(there.host, *call))
    return answered(reply, time.perf_counter() - due).seconds if reply.status == 200 else inf


def _block(taken: Sequence[float], seconds: float, allowed: float) -> Block:
    times = np.array([one for one in taken if one < inf] or [inf])
    return Block(float((times <= allowed).sum()) / seconds, float(times.mean()), float(np.percentile(times, 99)))


def _row(kind: str, old: Sequence[Block], new: Sequence[Block]) -> Row:
    def pair(of: str) -> str:
        return ", ".join(f"{np.mean([getattr(one, of) for one in side]) * 1e3:.2f}" for side in (old, new))

    return {
        "traffic": kind,
        "in time a second": ", ".join(f"{np.mean([one.rate for one in side]):.0f}" for side in (old, new)),
        "mean ms": pair("mean"),
        "p99 ms": pair("high"),
        "rate, now / before": str(ratio_of_means([one.rate for one in new], [one.rate for one in old])),
        "mean, before / now": str(ratio_of_means([one.mean for one in old], [one.mean for one in new])),
    }


def _memory(server: Child) -> int:
    """Return the bytes that a server's processes take; one that has ended, and is not waited for yet, takes none."""
    whole = 0
    for process in tree(server.process.pid):
        with suppress(ProcessLookupError, FileNotFoundError):
            whole += resident(process.pid).whole
    return whole
