"""Starts a server of our own for the ledger: `latebind serve` with models made for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from latebind.bench.ledger.networks import build
from latebind.bench.ledger.play import Target
from latebind.bench.server import launched


@contextmanager
def serving(folder: Path, models: Sequence[str], options: Sequence[str] = ()) -> Iterator[Target]:
    """Make these models in a folder and serve them with these options of `latebind serve`."""
    speaks_grpc = ("--grpc-port", "0") if find_spec("tritonclient") is not None else ()
    with launched(build(folder / "models", models), *speaks_grpc, *options, log=folder / "log") as server:
        yield Target("127.0.0.1", urlsplit(server.url).port or 80, server.grpc, server.process.pid)
