"""The model and rows that a benchmark asks for, and the settings of the servers that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.learned.samples import Samples
from latebind.repository.listing import find_models


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in a folder of models, and rows to ask for: arrays `(N, *shape)` by input; labels `(N,)` if any."""

    repository: Path
    model: str
    inputs: Mapping[str, Array]
    labels: Array | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.inputs.values())))

    @property
    def path(self) -> Path:
        """The directory of the model. Raises what `find_models` raises."""
        (path,) = find_models(self.repository, [self.model])
        return path

    def rows(self, start: int, end: int) -> dict[str, Array]:
        """Return the rows from `start` up to `end`, as the inputs of one call."""
        return {name: array[start:end] for name, array in self.inputs.items()}

    def row(self, number: int) -> dict[str, Array]:
        """Return one row, arrays `(1, *shape)`."""
        return self.rows(number, number + 1)

    def take(self, numbers: NDArray[np.int64], repository: Path | None = None) -> "Subject":
        """Return the same with these rows, of the model as it is in another folder where one is given."""
        inputs = {name: array[numbers] for name, array in self.inputs.items()}
        labels = None if self.labels is None else self.labels[numbers]
        return Subject(repository or self.repository, self.model, inputs, labels)

    def samples(self) -> Samples:
        """Return all rows without labels, as learned caches are calibrated on them."""
        return Samples({name: torch.from_numpy(array) for name, array in self.inputs.items()})


@dataclass(frozen=True, slots=True)
class Setting:
    """How all sides are served, on which cores, and with which seed; `log` takes the servers' log.

    Where the pace of the machine is taken (`live/pace.py`), that lasts `paced` seconds each time.
    """

    backend: str | None = None
    door_cores: tuple[int, ...] = (0,)
    engine_core: int = 1
    seed: int = 0
    log: Path | None = None
    paced: float = 0.4
