"""`python -m research`: each claim of a paper as a command that prints what it measured and with which settings."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from latebind.cli.bench import Parts
from latebind.cli.commands import STYLE

PARTS = {
    "batching": "batching",
    "live": "batching",
    "joint": "joint",
    "elastic": "elastic",
    "elastic-live": "elastic_live",
    "engine": "engine",
    "caches": "caches",
    "calibration": "adaptation",
    "locality": "adaptation",
    "drift": "adaptation",
    "flood": "overhead",
    "scheduler": "overhead",
    "stages": "overhead",
    "boundary": "overhead",
    "queries": "queries",
    "queries-live": "queries_live",
    "residency": "residency",
    "residency-live": "residency_live",
    "faults": "faults",
    "ray": "ray",
    "cluster": "cluster",
    "validate": "validate",
    "peers": "peers",
}
"""The module of `research.commands` that has each command, as a function of the same name."""


class Evaluations(Parts):
    """Imports the module of an evaluation only when it is called."""

    modules: ClassVar[Mapping[str, str]] = {name: f"research.commands.{module}" for name, module in PARTS.items()}


app = typer.Typer(name="python -m research", cls=Evaluations, no_args_is_help=True, **STYLE)


@app.callback()
def research() -> None:
    """Measure what the four papers claim, each beside its baselines; every command prints its settings.

    Ctrl-C ends a command behind the round under way, with what was measured by then, and exit code 130; a second one
    ends it at once.
    """


if __name__ == "__main__":
    app()
