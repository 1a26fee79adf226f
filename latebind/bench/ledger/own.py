"""A server of our own for the ledger to ask: `latebind serve` with models made for it."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from latebind.bench.ledger.networks import build_all, build_slow
from latebind.bench.ledger.play import Target
from latebind.bench.peers.processes import free_port, running


@contextmanager
def serving_all(folder: Path, options: Sequence[str]) -> Iterator[Target]:
    """Serve the models that the ledger mixes."""
    with _serving(build_all(folder / "models"), "relay", folder / "log", options) as target:
        yield target


@contextmanager
def serving_slow(folder: Path, options: Sequence[str]) -> Iterator[Target]:
    """Serve only the model that takes milliseconds."""
    build_slow(folder / "models")
    with _serving(folder / "models", "slow", folder / "log", options) as target:
        yield target


@contextmanager
def _serving(repository: Path, model: str, log: Path, options: Sequence[str]) -> Iterator[Target]:
    http, grpc = free_port(), free_port() if importlib.util.find_spec("tritonclient") else None
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--port", str(http)]
    if grpc is not None:
        command += ["--grpc-port", str(grpc)]
    with running([*command, *options], http=http, grpc=grpc, ready=f"/v2/models/{model}/ready", log=log) as served:
        yield Target("127.0.0.1", http, None if grpc is None else f"127.0.0.1:{grpc}", served.process)
