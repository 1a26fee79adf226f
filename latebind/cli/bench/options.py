"""Options that several commands of `latebind bench` share."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


def _drawable(file: Path | None) -> Path | None:
    """Raise an error at once if a page is asked for and plotly is missing, not after an hour of work."""
    if file is not None and find_spec("plotly") is None:
        raise ModuleNotFoundError("a page needs plotly", name="plotly")
    return file


Repository = Annotated[Path, typer.Argument(help="A folder of models.")]
Model = Annotated[str, typer.Option(help="The name of the model in the folder.")]
Data = Annotated[str, typer.Option(help="The rows to send: an .npz file or package.module:function.")]
DataOption = Annotated[
    list[str] | None, typer.Option(help="An argument key=value for the function that --data names; may be repeated.")
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="The backend that runs the stages, for all sides alike. Default: the one each model was built for."
    ),
]
FoldCount = Annotated[
    int,
    typer.Option(
        "--folds",
        help="Split the rows into this many folds, and calibrate the thresholds for each fold on all others. "
        "Default: use the thresholds of the model.",
    ),
]
FoldFidelity = Annotated[
    float, typer.Option("--fidelity", help="For --folds: the share of answers that must equal the base model's.")
]
Fidelity = Annotated[
    float, typer.Option(help="The fidelity target: the share of answers that must equal the base model's.")
]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.")]
Core = Annotated[int, typer.Option(help="The core that the engine runs on.")]
DoorCore = Annotated[int, typer.Option(help="The core that the door and the client run on.")]
ServerLog = Annotated[Path | None, typer.Option(help="Write what the servers log to FILE.")]
Awake = Annotated[
    bool,
    typer.Option(
        "--awake", help="Keep idle cores from sleeping during the measurement, for all sides alike. Needs root."
    ),
]
Processes = Annotated[int, typer.Option(help="How many runs go on at the same time. Default: one for each core.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="A day of the Azure Functions trace, as the published CSV or as .npz, of which the functions count that "
        "HTTP or a timer calls. Default: counts drawn with rates as in the trace."
    ),
]
Page = Annotated[Path | None, typer.Option(help="Write a page with plots to FILE.", callback=_drawable)]
ServeWords = Annotated[
    list[str] | None,
    typer.Option(help="An option to pass on to `latebind serve`, as in --serve=--slots=64; may be repeated."),
]
