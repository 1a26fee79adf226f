"""Engines with more models than memory holds: the models of a folder, the sides, and what their processes take. Linux.

What is cheap to read of a process counts code among pages of files, too, and a network that runs for the first time has
code read. So where pages of files seem to be more than there may be, those of weights are counted one file after
another. That takes longer than a small model's load: it counts only if nothing came or went meanwhile.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread

import msgspec

from latebind.bench.rounds import Progress
from latebind.domain.config import EngineConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.cores import at_once
from latebind.engine.on_demand import measure, open_model
from latebind.engine.order import EngineOrder
from latebind.engine.slots import file_bytes
from latebind.repository.listing import find_models
from latebind.server.gateway import MemoryMetrics
from research.live import Asked, Rows
from research.policies import EVICTION

INTERVAL = 0.1  # seconds between two looks at a process
TRIES = 20
KIB = 1 << 10
SETTLES = 0.3  # seconds until what an engine takes with nothing loaded is looked at
LRU, IAM, LATE = "lru", "iam", "late"
SIDES = {
    # These differ from `late` in what goes, and in that models come and go whole.
    LRU: ResidencyConfig(policy="lru"),
    IAM: ResidencyConfig(policy=EVICTION["iam"]),
    LATE: ResidencyConfig(policy="late"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all sides have in common. `patience` in seconds; no side refuses or drops anybody for being late."""

    tier: str = "disk"
    workers: int = 1
    slots: int = 64
    patience: float = 30.0

    @property
    def engine(self) -> EngineConfig:
        """The engine of every side. Learned caches are off: what is compared is memory."""
        return EngineConfig(workers=self.workers, threads=1, slots=self.slots, exits=False)


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

    def rows(self) -> list[dict[str, object]]:
        """Return the memory and the loading time of each model, as rows of a table."""
        return [
            {
                "model": name,
                "MB": round(model.size / 1e6, 1),
                "stages": model.spec.stages,
                "largest batch": model.spec.max_batch,
                "loads in ms": round(model.seconds * 1e3),
            }
            for name, model in self.models.items()
        ]

    def having(self, name: str, model: Weighed) -> "Zoo":
        """Return the same zoo with one more model."""
        return Zoo(self.folder, {**self.models, name: model})

    def beside_weights(self, names: Sequence[str], slots: int, workers: int) -> int:
        """Return what the slots of these models take, and the largest batches of so many workers."""
        specs = [self.models[name].spec for name in names]
        working = max(self.models[name].working for name in names)
        return file_bytes(specs, dict.fromkeys(names, slots)) + workers * working

    def drop_cached(self) -> None:
        """Drop the files of all models from the page cache, so that reads go to the disk."""
        for model in self.models.values():
            for file in model.path.rglob("*"):
                if file.is_file():
                    drop_cached(file)


def weigh(folder: Path, progress: Progress = lambda text, share: None) -> Zoo:
    """Load every piece of every model once, from disk, and unload it again. Raises what `open_model` raises."""
    paths = find_models(folder)
    if len(paths) < 2:
        raise ConfigError(f"{folder} has one model: give a folder of several, which are to share the memory")
    found = {}
    with _nothing_older_collected():
        for number, path in enumerate(paths):
            progress(f"weighing {path.parent.name}", number / len(paths))
            weighed = _weighed(path)
            found[weighed.spec.name] = weighed
    return Zoo(folder, found)


@contextmanager
def _nothing_older_collected() -> Iterator[None]:
    """Collect garbage only among what is made in this context.

    Garbage is collected twice for each piece that is weighed. Each time all that was imported would be gone through,
    which takes a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _weighed(path: Path) -> Weighed:
    opened = open_model(path, EngineConfig(exits=False), cached=False)
    sizes, seconds = [], 0.0
    for piece in opened.pieces:
        begun = time.monotonic()
        piece.load()
        seconds += time.monotonic() - begun
        sizes.append(piece.size)
        piece.unload()
    working = measure(opened, sum(sizes)).working
    return Weighed(path, opened.model.spec, sum(sizes), seconds, working)


def drop_cached(file: Path) -> None:
    """Drop a file from the page cache."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)  # what was not written yet does not go
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def order(zoo: Zoo, names: Sequence[str], side: ResidencyConfig, budget: int, setting: Setting) -> EngineOrder:
    """Return what an engine is told: these models, in `budget` bytes beside its slots and what batches take."""
    beside = zoo.beside_weights(names, setting.slots, at_once(setting.engine))
    residency = msgspec.structs.replace(side, budget=budget + beside, tier=setting.tier, patience=setting.patience)
    directories = tuple([str(zoo.models[name].path) for name in names])
    return EngineOrder(directories, setting.engine, PolicyConfig(shed=False), residency=residency)


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of a process that are in memory: all, and what of them are pages of files, as weights and code are."""

    all: int
    files: int


def taken(process: int) -> Taken:
    """Return the memory of a process now."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split() for line in lines if line.startswith(("VmRSS", "RssFile"))}
    return Taken(int(found["VmRSS"][1]) * KIB, int(found["RssFile"][1]) * KIB)


def mapped(process: int, folder: Path) -> int:
    """Return the bytes of files in a folder that a process has mapped and that are in memory."""
    found, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_bytes().splitlines():
        if line[:1].islower() or line[:1].isdigit():  # an address: what follows is of another mapping
            inside = f" {folder}/".encode() in line
        elif inside and line.startswith(b"Rss:"):
            found += int(line.split()[1]) * KIB
    return found


@dataclass(slots=True)
class Growth:
    """By how many bytes a process was larger than with nothing loaded: all of it, and weights, at each look."""

    all: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


class Watched(Asked):
    """A running engine with models of a zoo, and its memory with nothing loaded; models may take `budget` bytes."""

    def __init__(self, engine: EngineClient, zoo: Zoo, budget: int, seed: int) -> None:
        super().__init__(engine, {name: Rows.made_up(zoo.models[name].spec, Random(seed)) for name in engine.models})
        self.zoo, self.budget = zoo, budget
        self._base = taken(engine.process_id)

    async def memory(self) -> dict[str, MemoryMetrics]:
        """Return the engine's own figures of its models' memory."""
        return (await self.engine.metrics())["memory"]["models"]

    @contextmanager
    def looking(self) -> Iterator[Growth]:
        """Look at the engine's process on a thread while the block lasts; yields what it sees."""
        growth, end = Growth(), Event()

        def work() -> None:
            """Root of the thread."""
            while not end.wait(INTERVAL):
                self._look(growth)

        thread = Thread(target=work, name="watch")
        thread.start()
        try:
            yield growth
        finally:
            end.set()
            thread.join()

    def _look(self, growth: Growth) -> None:
        process = self.engine.process_id
        seen = taken(process)
        growth.all.append(seen.all - self._base.all)
        for _ in range(TRIES):
            files = seen.files - self._base.files
            if files <= self.budget:
                return growth.weights.append(files)
            weights, before = mapped(process, self.zoo.folder.resolve()), seen
            seen = taken(process)
            if seen.files == before.files:
                return growth.weights.append(weights)
        return None


@asynccontextmanager
async def watched(
    zoo: Zoo, side: ResidencyConfig, *, budget: int, setting: Setting, seed: int
) -> AsyncIterator[Watched]:
    """Start an engine with all models in `budget` bytes beside slots and batches; nothing is in the page cache."""
    zoo.drop_cached()
    engine = await EngineClient.start(order(zoo, list(zoo.models), side, budget, setting))
    try:
        await asyncio.sleep(SETTLES)
        yield Watched(engine, zoo, budget, seed)
    finally:
        await engine.close()
