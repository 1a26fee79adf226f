"""A server of our own for the ledger to ask: `latebind serve` with models made for it."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from latebind.bench.ledger.networks import build
from latebind.bench.ledger.play import Target
from latebind.bench.peers.processes import free_port, running


@contextmanager
def serving(folder: Path, models: Sequence[str], options: Sequence[str] = ()) -> Iterator[Target]:
    """Make these models in a folder and serve them with these options of `latebind serve`."""
    repository = build(folder / "models", models)
    http, grpc = free_port(), free_port() if importlib.util.find_spec("tritonclient") else None
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--port", str(http)]
    if grpc is not None:
        command += ["--grpc-port", str(grpc)]
    ready, log = f"/v2/models/{models[-1]}/ready", folder / "log"
    with running([*command, *options], http=http, grpc=grpc, ready=ready, log=log) as served:
        yield Target("127.0.0.1", http, None if grpc is None else f"127.0.0.1:{grpc}", served.process)
