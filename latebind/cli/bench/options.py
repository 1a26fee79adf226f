"""Options that several benchmarks share, and groups of them: what is asked, on which cores, calibrated how."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latebind.cli.options import DataOption
from latebind.domain.errors import ConfigError, NotFound, RepositoryError
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

if TYPE_CHECKING:
    from latebind.bench.subject import Folds
    from latebind.bench.subject import Subject as Loaded

Repository = Annotated[Path, typer.Argument(help="A folder of models.")]
Model = Annotated[str, typer.Option(help="The name of the model in the folder.")]
Data = Annotated[
    str | None,
    typer.Option(help="The rows to send: an .npz file or package.module:function; for a folder also a table."),
]
Backend = Annotated[
    str | None,
    typer.Option(help="The backend that runs the stages on all sides. Default: the one each model was built for."),
]
Core = Annotated[int, typer.Option(help="The core that the engine runs on.")]
FrontendCore = Annotated[int, typer.Option(help="The core that the frontend and the client run on.")]
ServerLog = Annotated[Path | None, typer.Option(help="Write what the servers log to FILE.")]
Fidelity = Annotated[
    float, typer.Option(help="The fidelity target: the share of answers that must equal the base model's.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="A day of the Azure Functions trace, as the published CSV or as .npz; functions called by HTTP or a timer "
        "count. Default: random counts with the rates of the trace."
    ),
]
ServeWords = Annotated[
    list[str] | None,
    typer.Option(help="An option to pass on to `latebind serve`, as in --serve=--policy=serial; may be repeated."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model in a folder, and the rows to send to it."""

    repository: Repository
    model: Model
    data: Data = None
    data_option: DataOption = None

    def load(self) -> "Loaded":
        """Return the model with its rows, and with labels if there are any. Raises `ConfigError`."""
        from latebind.bench.subject import Subject as Loaded
        from latebind.cli.sources import load_sized_rows, rows_for

        if self.data is None:
            raise ConfigError("there are no rows to send: give --data")
        directory = self._directory()
        if directory is None:
            rows = load_sized_rows(self.data, self.data_option, ())
        else:
            rows = rows_for(directory, self.data, self.data_option)
        return Loaded(self.repository, self.model, *rows)

    def _directory(self) -> ModelDirectory | None:
        """Return the model's directory; None for a query or a sequence model, whose rows have one size in a file."""
        with suppress(NotFound, RepositoryError):  # other errors come from the server
            directory = ModelDirectory.open(*find_models(self.repository, [self.model]))
            read_model(directory)
            return directory
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Whether to calibrate thresholds on rows other than those that are sent, and for which fidelity."""

    folds: Annotated[
        int,
        typer.Option(
            help="Split the rows into this many folds, and calibrate the thresholds for each fold on all others. "
            "Default: use the thresholds of the model."
        ),
    ] = 0
    fidelity: Annotated[
        float, typer.Option(help="For --folds: the share of answers that must equal the base model's.")
    ] = 0.97

    def wanted(self) -> "Folds | None":
        """Return the folds, or None to use the thresholds of the model."""
        from latebind.bench.subject import Folds

        return Folds(self.folds, self.fidelity) if self.folds else None
