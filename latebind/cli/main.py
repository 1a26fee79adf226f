"""The `latebind` command: puts its subcommands together."""

import typer

from latebind import __version__
from latebind.cli import bench, build, models, replay, serve, simulate

app = typer.Typer(
    name="latebind",
    help="A prediction server for PyTorch models that decides late: easy inputs leave the network early.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("build")(build.build)
app.command("serve")(serve.serve)
app.command("simulate")(simulate.simulate)
app.command("models")(models.models)
app.command("replay")(replay.replay)
app.add_typer(bench.app, name="bench")


@app.command("version")
def version() -> None:
    """Print the version of latebind."""
    typer.echo(__version__)
