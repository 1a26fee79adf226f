"""Reads the models of a repository for a workload: the costs measured when they were built, but no weights."""

from dataclasses import dataclass
from pathlib import Path

from latebind.domain.costs import ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.learned.stored import read_caches, with_caches
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.listing import find_models


@dataclass(frozen=True, slots=True)
class Built:
    """A model with its costs. `size` is the size of its weights in bytes."""

    spec: ModelSpec
    costs: ModelCosts
    size: int


def read_built(folder: Path, only: tuple[str, ...]) -> list[Built]:
    """Return the newest version of every model in a folder, or only of the models that are named.

    Raises `RepositoryError` if a model cannot be read. Raises `ConfigError` for sequence models, because a workload
    does not describe the lengths of inputs.
    """
    return [_read(ModelDirectory.open(path)) for path in find_models(folder, only or None)]


def _read(directory: ModelDirectory) -> Built:
    spec, costs = with_caches(*read_spec_and_costs(directory), read_caches(directory))
    if spec.kinds:
        raise ConfigError(
            f"{directory.path} is a sequence model, and a workload says of no request how long it is: "
            "name the others with models.only"
        )
    return Built(spec, costs, directory.files[WEIGHTS].bytes)
