"""`latebind bench memory`: what workers take that share their weights."""

from typing import Annotated

import typer

from latebind.bench import memory as memory_bench
from latebind.cli.bench.options import Backend, Model, Repository
from latebind.cli.console import JsonFile, console, reporting, save, show
from latebind.cli.numbers import numbers

MEGABYTE = 1e6


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
        found = memory_bench.run(repository, model, granularities=wanted, backend=backend)
    show(
        f"memory of {model}, MB: private, and with a part of what is shared (PSS)",
        [
            {
                "process": one.process,
                "workers": ", ".join(map(str, one.side.engine.granularities)) or "1, any batch",
                "weights": _copies(one.side),
                "loaded": _written(one.idle),
                "all have run": _written(one.used),
                "over one worker": f"{memory_bench.over_one(one, found):+.1%}",
            }
            for one in found
        ],
    )
    console.print(f"Ebird's workers, each with a copy on the device, take {memory_bench.PAPER:+.1%}")
    save(json_file, found)


def _copies(side: memory_bench.Side) -> str:
    return "a copy each" if side.copies else "one copy"


def _written(taken: memory_bench.Resident) -> str:
    return f"{taken.private / MEGABYTE:.0f}, {taken.whole / MEGABYTE:.0f}"
