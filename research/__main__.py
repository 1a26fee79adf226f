"""`python -m research`: each claim of a paper as a command that prints what it measured and with which settings."""

from collections.abc import Mapping
from typing import ClassVar

import typer

from latebind.cli.bench import Benchmarks
from latebind.cli.commands import STYLE

PARTS = {
    "batching": "lazybatching.command",
    "live": "lazybatching.command",
    "joint": "joint.command",
    "elastic": "ebird.command",
    "elastic-live": "ebird.command",
    "engine": "gati.command",
    "caches": "gati.command",
    "calibration": "gati.command",
    "locality": "gati.command",
    "drift": "gati.command",
    "load": "gati.command",
    "vectors": "vectors",
    "scheduler": "overhead.command",
    "queries": "gati.command",
    "queries-live": "gati.command",
    "residency": "mcache.command",
    "residency-live": "mcache.command",
    "faults": "faults.command",
    "ray": "cluster.command",
    "cluster": "cluster.command",
    "samples": "cluster.command",
    "validate": "validate.command",
    "peers": "peers.command",
    "before": "before",
    "shadow": "shadow",
    "lengths": "lengths.command",
    "lengths-costs": "lengths.command",
    "lengths-live": "lengths.beside",
    "lengths-one": "lengths.one",
    "lengths-packing": "lengths.packing",
    "texts": "lengths.texts",
    "writing": "lengths.writing",
}
"""The module that has each command, as a function of the same name."""


class Evaluations(Benchmarks):
    """Imports the module of an evaluation only when it is called."""

    modules: ClassVar[Mapping[str, str]] = {name: f"research.{module}" for name, module in PARTS.items()}


app = typer.Typer(name="python -m research", cls=Evaluations, no_args_is_help=True, **STYLE)


@app.callback()
def research() -> None:
    """Measure what the four papers claim, each beside its baselines; every command prints its settings.

    Ctrl-C ends a command with exit code 130; parts that have ended are printed and written by then.
    """


if __name__ == "__main__":
    app()
