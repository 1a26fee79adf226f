"""The servers that are compared, each with the settings that did best here, and the protocols that it speaks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.bench.ledger.questions import Protocol
from latebind.program.build import build_program
from research.peers import servers
from research.peers.servers import Served, environment, latebind

IDENTITY = "identity"
WIDTH = 16
LARGEST = 32  # rows of a batch, as the peers have it


class Identity(nn.Module):
    """Returns its input."""

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


LATEBIND, TRITON = "latebind", "triton"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a comparison takes place: environments of the peers, a folder for what is served and logged, options.

    `options` are those of `latebind serve`, `grpc` tells whether ours is to speak gRPC.
    """

    environments: Path
    folder: Path
    options: Sequence[str] = ()
    grpc: bool = True

    def log(self, side: str) -> Path:
        """Return the file for what a server says."""
        return self.folder / f"{side}.log"


@dataclass(frozen=True, slots=True)
class Side:
    """A server that can be started in a place."""

    protocols: tuple[Protocol, ...]
    start: Callable[[Place], AbstractContextManager[Served]]
    binary_path: str = ""  # where binary tensors go, if not where JSON goes


def _ours(place: Place) -> AbstractContextManager[Served]:
    repository = build_identity(place.folder / "repository")
    return latebind(
        repository,
        ["--model", IDENTITY, *place.options],
        ready=IDENTITY,
        log=place.log(LATEBIND),
        grpc=place.grpc,
    )


def _triton(place: Place) -> AbstractContextManager[Served]:
    shape = (WIDTH,)
    return servers.serve_triton(
        environment(place.environments, TRITON),
        place.folder / TRITON,
        name=IDENTITY,
        shape=shape,
        answer=shape,
        batch=LARGEST,
        instances=1,
    )


def _fastapi(place: Place) -> AbstractContextManager[Served]:
    return servers.serve_fastapi(environment(place.environments, "fastapi"), IDENTITY, place.log("fastapi"))


def _echo(place: Place) -> AbstractContextManager[Served]:
    return servers.serve_echo(place.log("echo"), awake=False)


def _awake_echo(place: Place) -> AbstractContextManager[Served]:
    return servers.serve_echo(place.log("awake echo"), awake=True)


def _litserve(place: Place) -> AbstractContextManager[Served]:
    path = environment(place.environments, "litserve")
    return servers.serve_litserve(path, IDENTITY, place.log("litserve"), workers=1, batch=1)


ALL = tuple(Protocol)
SIDES = {
    LATEBIND: Side(ALL, _ours),
    TRITON: Side(ALL, _triton),
    "fastapi": Side((Protocol.JSON, Protocol.BINARY), _fastapi, "-binary"),
    "litserve": Side((Protocol.JSON,), _litserve),
    "echo": Side((Protocol.JSON, Protocol.BINARY), _echo),
    "awake echo": Side((Protocol.JSON, Protocol.BINARY), _awake_echo),
}
