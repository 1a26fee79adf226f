"""Options that several commands of `latebind bench` share."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


def _drawable(file: Path | None) -> Path | None:
    """Refuse a page that nobody could draw before an hour's work, and not behind it."""
    if file is not None and find_spec("plotly") is None:
        raise ModuleNotFoundError("a page needs plotly", name="plotly")
    return file


Repository = Annotated[Path, typer.Argument(help="A folder of models.")]
Model = Annotated[str, typer.Option(help="Which model of the folder.")]
Data = Annotated[str, typer.Option(help="Rows to send: an .npz file or package.module:function.")]
DataOption = Annotated[list[str] | None, typer.Option(help="key=value for that function; may be repeated.")]
Backend = Annotated[str | None, typer.Option(help="Serve all sides with it. Default: as built.")]
FoldCount = Annotated[
    int,
    typer.Option("--folds", help="Calibrate on the other rows, in so many folds. Default: as the model is."),
]
FoldFidelity = Annotated[float, typer.Option("--fidelity", help="The target to calibrate the folds for.")]
Fidelity = Annotated[float, typer.Option(help="The target.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
Core = Annotated[int, typer.Option(help="The core of the engine.")]
DoorCore = Annotated[int, typer.Option(help="The core of door and client.")]
ServerLog = Annotated[Path | None, typer.Option(help="Keep what the servers log.")]
Awake = Annotated[
    bool, typer.Option("--awake", help="Keep the cores from sleeping meanwhile, for all sides alike. Needs root.")
]
Processes = Annotated[int, typer.Option(help="Runs at a time. Default: one for each core.")]
Trace = Annotated[
    Path | None,
    typer.Option(help="A day of the Azure Functions trace: CSV as published, or .npz. Default: counts like it."),
]
Page = Annotated[Path | None, typer.Option(help="Write a page with plots to FILE.", callback=_drawable)]
ServeWords = Annotated[
    list[str] | None, typer.Option(help="A word for `latebind serve`; may be repeated: --serve=--slots=64.")
]
