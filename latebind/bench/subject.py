"""The model and rows of a benchmark, how its servers are run, and folds of the rows."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.bench.rounds import Progress
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.domain.sizes import Dim
from latebind.learned.build import recalibrate
from latebind.learned.samples import Samples
from latebind.program.lengths import at_size
from latebind.program.measure import made_up_inputs
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, find_models


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in a folder of models, and rows to ask for: arrays `(N, *shape)` by input; labels `(N,)` if any.

    If rows differ in size, an input may be N arrays `shape`.
    """

    repository: Path
    model: str
    inputs: Mapping[str, Array | Sequence[Array]]
    labels: Array | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.inputs.values())))

    @property
    def path(self) -> Path:
        """The directory of the model. Raises what `find_models` raises."""
        (path,) = find_models(self.repository, [self.model])
        return path

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The inputs of rows that have one size."""
        return self.rows(0, len(self))

    def rows(self, start: int, end: int) -> dict[str, Array]:
        """Return the rows from `start` up to `end`, which have one size, as the inputs of one call."""
        some = {name: part[start:end] for name, part in self.inputs.items()}
        return {name: part if isinstance(part, np.ndarray) else np.stack(part) for name, part in some.items()}

    def row(self, number: int) -> dict[str, Array]:
        """Return one row, arrays `(1, *shape)`."""
        return self.rows(number, number + 1)

    def take(self, numbers: NDArray[np.int64], repository: Path | None = None) -> "Subject":
        """Return the same with these rows, for the model in another folder if one is given."""
        inputs = {
            name: part[numbers] if isinstance(part, np.ndarray) else [part[number] for number in numbers]
            for name, part in self.inputs.items()
        }
        labels = None if self.labels is None else self.labels[numbers]
        return Subject(repository or self.repository, self.model, inputs, labels)

    def samples(self) -> Samples:
        """Return all rows without labels, as learned caches are calibrated on them."""
        return Samples(
            {
                name: torch.from_numpy(part)
                if isinstance(part, np.ndarray)
                else [torch.from_numpy(row) for row in part]
                for name, part in self.inputs.items()
            }
        )

    def lengths(self) -> NDArray[np.int64] | None:
        """Return the length of each row; None if all rows have one size. Raises `ConfigError`."""
        if all(isinstance(part, np.ndarray) for part in self.inputs.values()):
            return None
        model = read_model(ModelDirectory.open(self.path))
        found = self.samples().ordered(model.inputs, model.dims).lengths
        return None if found is None else found.numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp(Subject):
    """A model whose rows differ in size, and rows of these `sizes` to ask for, with meaningless values."""

    spec: ModelSpec
    sizes: Sequence[Mapping[str, int]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.sizes)

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each row."""
        return np.array([prod(each.values()) for each in self.sizes])

    def rows(self, start: int, end: int) -> dict[str, Array]:
        """Return the row at `start`: rows of several sizes cannot be one call."""
        assert end == start + 1, "one row"
        specs = at_size(self.spec.inputs, self.sizes[start])
        made = zip(specs, made_up_inputs(specs, 1), strict=True)
        # As in examples of a build: a row in which everything is masked is not worth measuring.
        return {spec.name: np.ones_like(rows) if "mask" in spec.name else rows for spec, rows in made}


def sized(repository: Path, model: str) -> ModelSpec:
    """Return a model whose rows differ in size. Raises `ConfigError` if they do not."""
    (path,) = find_models(repository, [model])
    spec = read_model(ModelDirectory.open(path)).spec()
    if not spec.dims:
        raise ConfigError(f"rows of {model} all have one size: give rows to send, --data")
    return spec


def sizes_drawn(spec: ModelSpec, given: Sequence[Dim], count: int, *, seed: int) -> list[dict[str, int]]:
    """Draw sizes of rows evenly from these ranges, and, for other dimensions, from all that the model allows.

    Raises `ConfigError` for ranges that the model does not have.
    """
    ranges = {dim.name: dim for dim in spec.dims}
    for dim in given:
        known = ranges.get(dim.name)
        if known is None or not (known.allows(dim.least) and known.allows(dim.most)):
            has = ", ".join([f"{each.name}={each.written()}" for each in spec.dims])
            raise ConfigError(f"{dim.name}={dim.written()}: {spec.name} has {has}")
        ranges[dim.name] = dim.and_also(known)
    random = np.random.default_rng(seed)
    drawn = {
        dim.name: random.integers(dim.least // dim.step, dim.most // dim.step + 1, count) for dim in ranges.values()
    }
    return [{name: int(sizes[row]) * ranges[name].step for name, sizes in drawn.items()} for row in range(count)]


def sizes_in(file: Path, spec: ModelSpec) -> list[dict[str, int]]:
    """Return the sizes of rows in a file: in each line those of one, in the order of the model's dimensions.

    Raises `ConfigError` for what the model does not allow.
    """
    names, found = [dim.name for dim in spec.dims], []
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        sizes = [int(word) for word in words if word.isdecimal() and len(word) < 19]
        fits = len(sizes) == len(words) == len(names)
        if not fits or not all(dim.allows(size) for dim, size in zip(spec.dims, sizes, strict=True)):
            each = " and ".join([f"{dim.name} of {dim.range()}" for dim in spec.dims])
            raise ConfigError(f"{file}, line {number}: {line!r:.60}: write {each}")
        found.append(dict(zip(names, sizes, strict=True)))
    if not found:
        raise ConfigError(f"{file} has no sizes: write those of a row in each line")
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """How all sides are served, on which cores, and with which seed; `log` takes the servers' log.

    If the pace of the machine is measured (`live/pace.py`), that lasts `paced` seconds each time.
    """

    backend: str | None = None
    frontend_cores: tuple[int, ...] = (0,)
    engine_core: int = 1
    seed: int = 0
    log: Path | None = None
    paced: float = 0.4


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows in `count` parts; for each, a copy of the model is calibrated on the others at the target `fidelity`."""

    count: int
    fidelity: float


def answerable(subject: Subject, folds: Folds | None, setting: Setting, progress: Progress) -> Iterator[Subject]:
    """Yield the models to ask and the rows for each: the model unchanged, or a copy of it for each fold.

    The copy is calibrated on the other rows, and removed when the next is asked for; row i is in fold i modulo their
    number. Lookups are in line, because engines of benchmarks have one core each. Raises `ConfigError` for an invalid
    number of folds.
    """
    rows = len(subject)
    if folds is None:
        yield subject
        return
    if not 2 <= folds.count <= rows:
        raise ConfigError(f"{folds.count} folds of {rows} rows: give 2 or more, and not more than there are rows")
    for fold in range(folds.count):
        here = np.arange(rows) % folds.count == fold
        others = subject.take(np.flatnonzero(~here)).samples()
        with TemporaryDirectory() as folder:
            copy = copied(subject.repository, subject.model, Path(folder))
            progress(f"calibrating for fold {fold + 1} of {folds.count}", fold / folds.count)
            recalibrate(copy, others, fidelity=folds.fidelity, aside=False, backend=setting.backend, seed=setting.seed)
            progress(f"asking for fold {fold + 1} of {folds.count}", (fold + 0.4) / folds.count)
            yield subject.take(np.flatnonzero(here), Path(folder))


def copied(repository: Path, model: str, folder: Path) -> ModelDirectory:
    """Return a copy of a model in `folder`, which may be calibrated differently."""
    (source,) = find_models(repository, [model])
    copy = Repository(folder).path_for(model, "1")
    shutil.copytree(source, copy)
    return ModelDirectory.open(copy)
