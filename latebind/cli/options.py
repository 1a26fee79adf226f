"""Options that several commands share, and their parsing."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim

MOST = 1 << 62  # bytes: more than any machine has


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers between the commas of `text`, which was given for `option`; raises `ConfigError`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: give whole numbers with commas between, such as 1 or 2,3") from None


def in_bytes(option: str, amount: float, unit: float) -> int:
    """Return the bytes of an amount in units of `unit` bytes, `MOST` if it is infinite; raises `ConfigError`."""
    if not amount >= 0:
        raise ConfigError(f"{option} {amount:g}: give 0 or more")
    return round(min(amount * unit, MOST))


def read_dims(options: Sequence[str]) -> dict[str, Dim]:
    """Return the dimensions that options such as `L=1..512` and `H=32..1024:32` declare, by name.

    Raises `ConfigError`.
    """
    found: dict[str, Dim] = {}
    for option in options:
        name, _, text = option.partition("=")
        if not name.isidentifier() or "x" in name:  # an x separates sizes
            raise ConfigError(f"--dim {option!r:.140}: write it as L=1..512, with a name of letters and no x")
        if name in found:
            raise ConfigError(f"--dim {option!r:.140}: {name} is declared twice")
        try:
            found[name] = Dim.read(name, text)
        except ValueError as error:
            raise ConfigError(f"--dim {option!r:.140}: {error}") from None
    return found


def _drawable(file: Path | None) -> Path | None:
    """Raise an error at the start, not after an hour of work, if a page is requested and plotly is missing."""
    if file is not None and find_spec("plotly") is None:
        raise ModuleNotFoundError("a page needs plotly", name="plotly")
    return file


DataOption = Annotated[
    list[str] | None, typer.Option(help="An argument key=value for the function that --data names; may be repeated.")
]
Repository = Annotated[
    str, typer.Argument(help="A folder of models, one model directory, or the URL of either: s3://bucket/models.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to FILE as JSON.")]
Page = Annotated[Path | None, typer.Option(help="Write a page with plots to FILE.", callback=_drawable)]
Processes = Annotated[int, typer.Option(help="How many runs go on at the same time. Default: one for each core.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]
