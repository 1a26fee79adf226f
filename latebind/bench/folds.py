"""Folds: each row meets thresholds that were calibrated on the others, so one set of rows does for both."""

import shutil
from collections.abc import Callable, Iterator, Mapping
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


def calibrated_folds(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    *,
    folds: int,
    fidelity: float,
    backend: str | None,
    seed: int,
    progress: Callable[[str, float], None],
) -> Iterator[tuple[Path, NDArray[np.int64]]]:
    """Yield for each fold a folder with a copy of the model, calibrated on the other rows, and the fold's row numbers.

    `inputs` are arrays `(N, *shape)` by name; row i is in fold i modulo `folds`. The folder goes when the next fold is
    asked for. Raises `ConfigError` for a number of folds without sense.
    """
    fold_of = np.arange(len(next(iter(inputs.values())))) % folds if folds > 0 else np.arange(0)
    if not 2 <= folds <= len(fold_of):
        raise ConfigError(f"{folds} folds of {len(fold_of)} rows: give 2 or more, and not more than there are rows")
    (source,) = find_models(repository, [model])
    for fold in range(folds):
        here = fold_of == fold
        others = Samples({name: torch.from_numpy(array[~here]) for name, array in inputs.items()})
        with TemporaryDirectory() as folder:
            copy = Repository(folder).path_for(model, "1")
            shutil.copytree(source, copy)
            progress(f"calibrating for fold {fold + 1} of {folds}", fold / folds)
            recalibrate(ModelDirectory.open(copy), others, fidelity=fidelity, backend=backend, seed=seed)
            progress(f"asking for fold {fold + 1} of {folds}", (fold + 0.4) / folds)
            yield Path(folder), np.flatnonzero(here)
