"""What an engine serves: its models and the queries over them, and how many rows each has in shared memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latebind.domain.errors import RepositoryError
from latebind.domain.model import ModelSpec
from latebind.domain.query import StepRows, lay_out
from latebind.engine.slots import file_bytes
from latebind.engine.worker import LoadedModel
from latebind.learned.accuracy import read_accuracies
from latebind.queries.file.definition import read_query
from latebind.queries.file.wiring import DefinedQuery


@dataclass(frozen=True, slots=True)
class Served:
    """The specifications of models, then of `queries`, and the rows that each has in shared memory."""

    specs: tuple[ModelSpec, ...]
    queries: tuple[DefinedQuery, ...]
    rows: StepRows

    @property
    def bytes(self) -> int:
        """The bytes that all slots take once each has been used."""
        return file_bytes(self.specs, self.rows.total)

    @property
    def deadlines(self) -> dict[str, float]:
        """The default seconds of requests without a time-out, for queries that define them."""
        return {one.query.name: one.query.deadline for one in self.queries if one.query.deadline}


def _check_names(models: Sequence[LoadedModel]) -> None:
    """Raise `RepositoryError` where the files of two directories say the same name, as those of a copy do."""
    found: dict[str, Path] = {}
    for model in models:
        name, path = model.spec.name, model.directory.path
        if name in found:
            raise RepositoryError(
                f"{found[name]} and {path} both hold a model named {name!r}: build one of them anew under another "
                "--name, or take one of the folders away"
            )
        found[name] = path


def with_queries(models: Sequence[LoadedModel], files: Sequence[Path], slots: int) -> Served:
    """Return the models together with the queries of these files.

    Raises `QueryError` for an invalid query, `RepositoryError` where two directories hold models of one name.
    """
    _check_names(models)
    specs = {model.spec.name: model.spec for model in models}
    accuracies = read_accuracies(model.directory for model in models) if files else {}
    queries = tuple(read_query(file, specs, accuracies) for file in files)
    rows = lay_out(specs, [one.query for one in queries], slots)
    return Served((*specs.values(), *(one.query.spec for one in queries)), queries, rows)
