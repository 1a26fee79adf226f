"""Folds: each row meets thresholds that were calibrated on the others, so one set of rows does for both."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.domain.errors import ConfigError
from latebind.learned.build import recalibrate
from latebind.learned.samples import Samples
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, find_models


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows in `count` parts; for each, a copy of the model is calibrated on the others at the target `fidelity`."""

    count: int
    fidelity: float


def answerable(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    folds: Folds | None,
    *,
    backend: str | None,
    seed: int,
    progress: Callable[[str, float], None],
) -> Iterator[tuple[Path, NDArray[np.int64]]]:
    """Yield folders of models together with the numbers of the rows to ask there.

    Without folds that is the repository itself and all rows. With folds, each folder has a copy of the model calibrated
    on the other rows, and goes when the next is asked for; row i is in fold i modulo their number. Lookups are in line,
    for engines of benchmarks have a core each. `inputs` are arrays
    `(N, *shape)` by name. Raises `ConfigError` for a number of folds without sense.
    """
    rows = len(next(iter(inputs.values())))
    if folds is None:
        yield repository, np.arange(rows)
        return
    if not 2 <= folds.count <= rows:
        raise ConfigError(f"{folds.count} folds of {rows} rows: give 2 or more, and not more than there are rows")
    for fold in range(folds.count):
        here = np.arange(rows) % folds.count == fold
        others = Samples({name: torch.from_numpy(array[~here]) for name, array in inputs.items()})
        with TemporaryDirectory() as folder:
            copy = copied(repository, model, Path(folder))
            progress(f"calibrating for fold {fold + 1} of {folds.count}", fold / folds.count)
            recalibrate(copy, others, fidelity=folds.fidelity, aside=False, backend=backend, seed=seed)
            progress(f"asking for fold {fold + 1} of {folds.count}", (fold + 0.4) / folds.count)
            yield Path(folder), np.flatnonzero(here)


def copied(repository: Path, model: str, folder: Path) -> ModelDirectory:
    """Return a copy of a model in `folder`, which may be calibrated otherwise."""
    (source,) = find_models(repository, [model])
    copy = Repository(folder).path_for(model, "1")
    shutil.copytree(source, copy)
    return ModelDirectory.open(copy)
