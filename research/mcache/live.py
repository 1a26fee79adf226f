"""Live engines with less memory than their models take: a trace sped up, clients that wait, and cold starts. Linux.

A trace plays requests of an hour, faster, to one side after another, the same for each. Clients of a crowd ask for
their next model as soon as they have an answer. A cold start is the first answer of a model that others have pushed out
of memory, whole or in part: others are asked for until enough of it is evicted, as the engine itself reports.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from latebind.bench.report import bars, distributions
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.cores import at_once
from latebind.engine.on_demand import measure, open_model
from latebind.engine.order import EngineOrder
from latebind.engine.slots import file_bytes
from latebind.repository.listing import find_models
from latebind.server.gateway import MemoryMetrics
from research import live
from research.evaluation import Found
from research.live import Asked, Call
from research.mcache.crowd import CLIENTS, LATE, LRU, Crowded, crowd_rows, sides
from research.mcache.traces import HOUR, REQUESTS, Pairing, Request, Service, halves, hour_of, invocations, paired
from research.sides import Figures

MINUTE = 60.0
NEIGHBORS = 5  # requests that are resampled together: those who come next to each other wait for the same loads
ROOM = 1.05  # of the largest model's bytes: what all may take together at least, for cold starts
ASKED = 200  # requests for others at most until enough of a model has gone
LARGEST, RESIDENT = 3, 0.5  # models that start cold, and the share of one that is there where it starts in part
SLOTS = 64
SETTLES = 0.3  # seconds until an engine has started and rests


# Models and engines ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weighed:
    """A model: the bytes of all its pieces, the seconds that they take to load from disk, and what a batch takes."""

    path: Path
    spec: ModelSpec
    size: int
    seconds: float
    working: int = 0


@dataclass(frozen=True, slots=True)
class Zoo:
    """Models of a folder, by name."""

    folder: Path
    models: Mapping[str, Weighed]

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(model.size for model in self.models.values())

    @property
    def slowest_first(self) -> list[str]:
        """Names in the order of decreasing loading time."""
        return sorted(self.models, key=lambda name: -self.models[name].seconds)

    @property
    def largest_first(self) -> list[str]:
        """Names in the order of decreasing size."""
        return sorted(self.models, key=lambda name: -self.models[name].size)

    def rows(self) -> Rows:
        """Return the memory and the loading time of each model, as rows of a table."""
        return [
            {
                "model": name,
                "MB": round(model.size / 1e6, 1),
                "stages": model.spec.stages,
                "loads in ms": round(model.seconds * 1e3),
            }
            for name, model in self.models.items()
        ]

    def drop_cached(self) -> None:
        """Drop the files of all models from the page cache, so that reads go to the disk."""
        for file in (file for model in self.models.values() for file in model.path.rglob("*") if file.is_file()):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fsync(handle)  # what was not written yet does not go
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def weigh(folder: Path, progress: Progress = lambda text, share: None) -> Zoo:
    """Load every piece of every model once, from disk, and unload it again. Raises what `open_model` raises."""
    paths = find_models(folder)
    if len(paths) < 2:
        raise ConfigError(f"{folder} has one model: give a folder of several, which are to share the memory")
    found = {}
    for number, path in enumerate(paths):
        progress(f"weighing {path.parent.name}", number / len(paths))
        loaded = measure(open_model(path, EngineConfig(exits=False), cached=False), 1 << 50)
        footprint = loaded.footprint
        found[loaded.spec.name] = Weighed(path, loaded.spec, footprint.size, footprint.penalty, loaded.working)
    return Zoo(folder, found)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sides have in common. `patience` in seconds; no side refuses or drops anybody for being late."""

    tier: str = "disk"
    workers: int = 1
    patience: float = 30.0

    def order(self, zoo: Zoo, side: str, budget: int) -> EngineOrder:
        """Return what an engine is told: all models in `budget` bytes beside its slots and what batches take.

        Learned caches are off: what is compared is memory.
        """
        engine = EngineConfig(workers=self.workers, threads=1, slots=SLOTS, exits=False)
        specs = [model.spec for model in zoo.models.values()]
        beside = file_bytes(specs, dict.fromkeys(zoo.models, SLOTS))
        beside += at_once(engine) * max(model.working for model in zoo.models.values())
        known = sides(self.patience)[side]
        residency = msgspec.structs.replace(known, budget=budget + beside, tier=self.tier)
        directories = tuple([str(model.path) for model in zoo.models.values()])
        return EngineOrder(directories, engine, PolicyConfig(shed=False), residency=residency)


class Watched(Asked):
    """A running engine with models of a zoo, which may take `budget` bytes."""

    def __init__(self, engine: EngineClient, zoo: Zoo, budget: int, seed: int) -> None:
        rows = {name: live.Rows.made_up(zoo.models[name].spec, Random(seed)) for name in engine.models}
        super().__init__(engine, rows)
        self.zoo, self.budget = zoo, budget

    async def memory(self) -> dict[str, MemoryMetrics]:
        """Return the engine's own figures of its models' memory."""
        return (await self.engine.metrics())["memory"]["models"]

    async def share_there(self, name: str) -> float:
        """Return the share of a model that is in memory."""
        figures = (await self.memory())[name]
        return figures["resident_bytes"] / figures["bytes"]


@asynccontextmanager
async def watched(zoo: Zoo, side: str, budget: int, setting: Setting, seed: int) -> AsyncIterator[Watched]:
    """Start an engine with all models in `budget` bytes beside slots and batches; nothing is in the page cache."""
    zoo.drop_cached()
    engine = await EngineClient.start(setting.order(zoo, side, budget))
    try:
        await asyncio.sleep(SETTLES)
        yield Watched(engine, zoo, budget, seed)
    finally:
        await engine.close()


# Trace and crowd ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Each round plays another piece of another hour: `warm_up` and `seconds`, at `speed` times the trace's.

    Models may take a share of what all take. Only requests that come after the warm-up count.
    """

    services: tuple[Service, ...]
    sides: tuple[str, ...]
    shares: tuple[float, ...] = ()
    speed: float = 10.0
    seconds: float = 20.0
    warm_up: float = 5.0
    rounds: int = 1
    clients: int = CLIENTS
    seed: int = 0

    def hour(self, models: Sequence[str], number: int) -> tuple[list[Request], Random]:
        """Return the requests of a round's hour, and the generator that drew them; `models` the slowest first."""
        half, seed = number % 2, self.seed + number // 2
        random = Random(f"{half} {seed}")
        hour = hour_of(halves(self.services)[half], Random(f"hour {half} {seed}"), REQUESTS)
        return invocations(hour, paired(hour, models, Pairing.RANDOM, random), random), random

    def requests(self, models: Sequence[str], number: int) -> list[Request]:
        """Return the requests of a round."""
        every, random = self.hour(models, number)
        span = self.speed * (self.warm_up + self.seconds)
        if span > MINUTE * HOUR:
            raise ConfigError(
                f"{span:.0f} s of the trace are more than the hour that is drawn: give less --speed or --seconds"
            )
        first = random.uniform(0.0, MINUTE * HOUR - span)
        return [
            Request((one.time - first) / self.speed, one.model) for one in every if first <= one.time < first + span
        ]


@dataclass(frozen=True, slots=True)
class Block:
    """The outcome of one round on one side: the calls that count; loads of pieces or models `read` bytes.

    Some of them lay in the page cache; the warm-up counts there.
    """

    calls: Sequence[Call]
    loads: int
    read: int
    cached: int

    @property
    def seconds(self) -> Figures:
        """Seconds of all calls, inf where there was no answer."""
        return np.array([call.seconds if call.answered else np.inf for call in self.calls])


async def _block(here: Watched, plan: Plan, models: Sequence[Request] | Sequence[Iterator[str]]) -> Block:
    """Play requests of a trace, or let clients ask for their models."""
    if isinstance(models[0], Request):
        calls = await here.play([(one.time, one.model) for one in models if isinstance(one, Request)])
    else:
        clients = [one for one in models if not isinstance(one, Request)]
        calls = await here.crowd(clients, plan.warm_up + plan.seconds)
    began = min(call.due for call in calls)
    every = list((await here.memory()).values())
    loads, read, cached = (sum(one[name] for one in every) for name in ("loads", "read_bytes", "cached_bytes"))
    counted = [one for one in calls if one.due - began >= plan.warm_up]
    return Block(counted, loads, read, cached)


async def trace(zoo: Zoo, plan: Plan, setting: Setting, on_progress: Progress) -> Found:
    """Play all rounds of a trace; the order of sides is turned round with each. Raises `ConfigError`."""
    share = (plan.shares or (0.4,))[0]
    found: dict[str, list[Block]] = {name: [] for name in plan.sides}
    for number in range(plan.rounds):
        requests = plan.requests(zoo.slowest_first, number)
        for at, name in enumerate(plan.sides[:: -1 if number % 2 else 1]):
            on_progress(f"{name}, {len(requests)} requests", (number + at / len(plan.sides)) / plan.rounds)
            async with watched(zoo, name, round(share * zoo.size), setting, plan.seed) as here:
                found[name].append(await _block(here, plan, requests))
    every = {name: np.concatenate([block.seconds for block in some]) for name, some in found.items()}
    tables = {
        f"requests of a trace in {share:.0%} of the memory": [
            {"side": name, **_latency(seconds, every.get(LRU), plan.seed)} for name, seconds in every.items()
        ],
        "what was loaded, warm-up included": [loads_row(name, some) for name, some in found.items()],
    }
    answered = {name: seconds[np.isfinite(seconds)] for name, seconds in every.items()}
    return Found(tables, lambda: [distributions("Latency", answered)])


async def crowd(zoo: Zoo, plan: Plan, setting: Setting, on_progress: Progress) -> Found:
    """Let a crowd ask each side in each share of the memory; each client asks for the same models in all of them."""
    shares = plan.shares or (0.4, 0.6)
    found: dict[str, dict[str, list[Crowded]]] = {f"{share:.0%}": {name: [] for name in plan.sides} for share in shares}
    blocks: dict[str, list[Block]] = {}
    steps = [(share, name) for share in shares for name in plan.sides]
    for number in range(plan.rounds):
        models = [one.model for one in plan.hour(zoo.slowest_first, number)[0]]
        for at, (share, name) in enumerate(steps):
            on_progress(f"{name}, {share:.0%}", (number + at / len(steps)) / plan.rounds)
            clients = [_drawn(models, f"{plan.seed} {number} {client}") for client in range(plan.clients)]
            async with watched(zoo, name, round(share * zoo.size), setting, plan.seed) as here:
                block = await _block(here, plan, clients)
            found[f"{share:.0%}"][name].append(_crowded(block, plan.seconds))
            blocks.setdefault(f"{name}, {share:.0%}", []).append(block)
    title = f"{plan.clients} clients that wait for their answers; a request waits for {setting.patience:g} s at most"
    loads = [loads_row(name, some) for name, some in blocks.items()]
    rates = {
        name: (list(found), [np.mean([one.throughput for one in by_side[name]]) for by_side in found.values()])
        for name in plan.sides
    }
    return Found(
        {title: crowd_rows(found, plan.seed), "what was loaded": loads},
        lambda: [bars(title, rates, x="share of all models' memory", y="answers a second")],
    )


def _drawn(models: Sequence[str], seed: str) -> Iterator[str]:
    """Yield models without end, each as often as it is asked for."""
    random = Random(seed)
    while True:
        yield random.choice(models)


def _crowded(block: Block, seconds: float) -> Crowded:
    answered = [call for call in block.calls if call.answered]
    latencies = [call.seconds for call in answered]
    longest = max([call.waited for call in answered], default=np.inf)
    return Crowded(
        len(answered) / seconds, float(np.mean(latencies or [np.inf])), longest, len(block.calls) - len(answered)
    )


def _latency(seconds: Figures, base: Figures | None, seed: int) -> Row:
    """Return latencies, and the ratio of mean latency to LRU's, paired request by request."""
    ms = 1e3 * seconds[np.isfinite(seconds)]
    row: Row = {"requests": len(ms), "mean ms": round(float(ms.mean()), 1)}
    row |= {f"p{percent} ms": round(float(np.percentile(ms, percent)), 1) for percent in (50, 99)}
    if base is not None:
        both = np.isfinite(seconds) & np.isfinite(base)
        row[f"mean / {LRU}"] = str(ratio_of_means(seconds[both], base[both], block=NEIGHBORS, seed=seed))
    return row | {"lost": len(seconds) - len(ms)}


def loads_row(name: str, blocks: Sequence[Block]) -> Row:
    """Return what a side loaded and from where; a load of `late` is one piece."""
    read, cached = (sum(getattr(block, name) for block in blocks) for name in ("read", "cached"))
    row: Row = {"side": name, "loads": sum(block.loads for block in blocks), "GB read": round(read / 1e9, 2)}
    return row | {"of it from the page cache": f"{cached / max(1, read):.1%}"}


# Cold starts ----------------------------------------------------------------------------------------------------------


class Start(StrEnum):
    """How a model starts."""

    WHOLE = "all of it loaded, then run"
    COLD = "run while it loads"
    PARTIAL = "part of it there, run while the rest loads"


@dataclass(frozen=True, slots=True)
class First:
    """The first answer of a model: its share in memory before, and the seconds that it took."""

    model: str
    start: Start
    there: float
    seconds: float


async def cold(zoo: Zoo, plan: Plan, setting: Setting, on_progress: Progress) -> Found:
    """Start the largest models in every way; where one starts in part, only so many others are asked for before."""
    names, found = zoo.largest_first[:LARGEST], list[First]()
    for at, (side, start) in enumerate(((LRU, Start.WHOLE), (LATE, Start.COLD))):
        on_progress(start, at / 3)
        async with watched(zoo, side, round(ROOM * zoo.models[names[0]].size), setting, plan.seed) as here:
            for name in names * plan.rounds:
                found += await _first(here, name, start, 0.0)
    on_progress(Start.PARTIAL, 2 / 3)
    for name in names:
        few = _few(zoo, name)
        budget = few.size - round((1 - RESIDENT) * zoo.models[name].size)
        async with watched(few, LATE, budget, setting, plan.seed) as here:
            await here.call(name)
            for _ in range(plan.rounds):
                found += await _first(here, name, Start.PARTIAL, RESIDENT)
    return Found({"first answers of the largest models": cold_rows(found)}, raw=found)


def _few(zoo: Zoo, name: str) -> Zoo:
    """Return a model and the least others, the largest first, that leave no more than a share `RESIDENT` of it."""
    models: dict[str, Weighed] = {}
    for other in zoo.largest_first:
        if other != name and sum(one.size for one in models.values()) < (ROOM - RESIDENT) * zoo.models[name].size:
            models[other] = zoo.models[other]
    return Zoo(zoo.folder, {**models, name: zoo.models[name]})


async def _first(here: Watched, name: str, start: Start, share: float) -> list[First]:
    """Evict a model until at most `share` of it is in memory, and ask for it."""
    others = cycle([other for other in here.zoo.largest_first if other != name])
    for _ in range(ASKED):
        there = await here.share_there(name)
        if there <= share:
            return [First(name, start, there, (await here.call(name)).seconds)]
        await here.call(next(others))
    return []


def cold_rows(firsts: Sequence[First]) -> Rows:
    """Return the median of the first answers of each model, by how it starts, and what of a whole start that is."""
    rows: Rows = []
    for model in dict.fromkeys(one.model for one in firsts):
        by_start = {start: [one for one in firsts if (one.model, one.start) == (model, start)] for start in Start}
        medians = {start: np.median([one.seconds for one in some]) for start, some in by_start.items() if some}
        rows += [
            {
                "model": model,
                "start": str(start),
                "times": len(by_start[start]),
                "of it there": f"{np.mean([one.there for one in by_start[start]]):.0%}",
                "first answer ms": round(float(seconds) * 1e3, 1),
                "of a whole start": f"{seconds / medians.get(Start.WHOLE, np.nan):.2f}",
            }
            for start, seconds in medians.items()
        ]
    return rows
