"""The models of a repository as a workload takes them: what was measured as they were built. No weights are read."""

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
    """A model, its costs, and the `size` of its weights in bytes."""

    spec: ModelSpec
    costs: ModelCosts
    size: int


def read_built(folder: Path, only: tuple[str, ...]) -> list[Built]:
    """Return the newest versions of all models in a folder, or of those named.

    Raises `RepositoryError` where one cannot be read, and `ConfigError` for sequence models, since a workload does not
    say how long their inputs are.
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
