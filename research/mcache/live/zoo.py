"""The models of a folder before the comparison: the memory they take and how long they load."""

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from latebind.bench.client import Array
from latebind.bench.rounds import Progress
from latebind.domain.config import EngineConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.on_demand import measure, open_model
from latebind.engine.slots import file_bytes
from latebind.repository.listing import find_models

MADE_UP = 4  # rows of each model


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
                    _drop(file)


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


def made_up(spec: ModelSpec, random: Random) -> list[dict[str, Array]]:
    """Return rows `(1, *shape)` by input: normal numbers, or numbers of words."""
    numbers = np.random.default_rng(random.getrandbits(32))
    return [{one.name: _made_up(one, numbers) for one in spec.inputs} for _ in range(MADE_UP)]


def _made_up(spec: TensorSpec, numbers: np.random.Generator) -> Array:
    shape, dtype = (1, *spec.shape), np.dtype(spec.dtype)
    if dtype.kind == "f":
        return numbers.standard_normal(shape).astype(dtype)
    return numbers.integers(0, spec.limit or 1, shape).astype(dtype)


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


def _drop(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)  # what was not written yet does not go
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
