"""Starts a server of our own for the ledger: `latebind serve` with models made for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from latebind.bench.ledger.networks import build
from latebind.bench.ledger.play import Target
from latebind.bench.peers.processes import latebind


@contextmanager
def serving(folder: Path, models: Sequence[str], options: Sequence[str] = ()) -> Iterator[Target]:
    """Make these models in a folder and serve them with these options of `latebind serve`."""
    repository, grpc = build(folder / "models", models), find_spec("tritonclient") is not None
    with latebind(repository, options, ready=models[-1], log=folder / "log", grpc=grpc) as served:
        yield Target("127.0.0.1", served.http, f"127.0.0.1:{served.grpc}" if grpc else None, served.process)
