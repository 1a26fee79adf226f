"""`latebind bench memory`: what workers take that share their weights."""

from typing import Annotated

import typer

from latebind.bench import memory as bench
from latebind.cli.bench.options import Backend, Model, Repository
from latebind.cli.console import console, reporting, save, show
from latebind.cli.options import JsonFile, numbers


def memory(
    repository: Repository,
    model: Model,
    granularities: Annotated[
        str | None,
        typer.Option(
            help="The largest batch of each worker, one number for each. Default: 1,1,2,4,8,16, as far as the "
            "model allows."
        ),
    ] = None,
    backend: Backend = None,
    json_file: JsonFile = None,
) -> None:
    """Measure the memory of one worker, of several that share the weights, and of several with a copy each.

    Example: `latebind bench memory models --model resnet56`
    """
    with reporting():
        wanted = () if granularities is None else numbers("--granularities", granularities)
        found = bench.run(repository, model, granularities=wanted, backend=backend)
    show(f"memory of {model}, MB: private, and with a part of what is shared (PSS)", bench.rows(found))
    console.print(f"Ebird's workers, each with a copy on the device, take {bench.PAPER:+.1%}")
    save(json_file, found)
