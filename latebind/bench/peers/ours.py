"""Latebind as one of those compared: `latebind serve` with a model built for it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.bench.peers.processes import Served, free_port, running
from latebind.program.build import build_program

IDENTITY = "identity"
WIDTH = 16
LARGEST = 32  # rows of a batch, as the peers have it


class Identity(nn.Module):
    """Answers what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to the same."""
        return x * 1.0


def build_identity(folder: Path) -> Path:
    """Make a repository with `identity` and return it."""
    example = {"x": torch.zeros(2, WIDTH)}
    build_program(
        Identity(),
        example,
        directory=folder / IDENTITY / "1",
        name=IDENTITY,
        backends=["eager"],
        max_batch=LARGEST,
        output_names=["y"],
    )
    return folder


@contextmanager
def serve(repository: Path, model: str, options: Sequence[str], log: Path, *, grpc: bool) -> Iterator[Served]:
    """Serve one model of a repository with these options of `latebind serve`."""
    http, calls = free_port(), free_port() if grpc else None
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--model", model, "--port", str(http)]
    if calls is not None:
        command += ["--grpc-port", str(calls)]
    with running([*command, *options], http=http, grpc=calls, ready=f"/v2/models/{model}/ready", log=log) as served:
        yield served
