"""Cross-validation folds: each row is answered by thresholds that were calibrated on the other rows."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latebind.bench.parallel import Progress
from latebind.bench.subject import Setting, Subject
from latebind.domain.errors import ConfigError
from latebind.learned.build import recalibrate
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository, find_models


@dataclass(frozen=True, slots=True)
class Folds:
    """Rows in `count` parts; for each, a copy of the model is calibrated on the others at the target `fidelity`."""

    count: int
    fidelity: float


def answerable(subject: Subject, folds: Folds | None, setting: Setting, progress: Progress) -> Iterator[Subject]:
    """Yield the models to ask and the rows for each: the whole model as it is, or a copy of it for each fold.

    That copy is calibrated on the other rows, and goes when the next is asked for; row i is in fold i modulo their
    number. Lookups are in line, for engines of benchmarks have a core each. Raises `ConfigError` for a number of folds
    without sense.
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
    """Return a copy of a model in `folder`, which may be calibrated otherwise."""
    (source,) = find_models(repository, [model])
    copy = Repository(folder).path_for(model, "1")
    shutil.copytree(source, copy)
    return ModelDirectory.open(copy)
