"""The servers that are compared, each with the settings that did best here, and the two models that they serve.

`identity` returns its input: what the servers themselves cost. ResNet-18 (CIFAR stem, random weights, float32) runs on
two workers of one thread each, with the same backend everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from latebind.bench.client import Array
from latebind.bench.ledger.questions import Protocol
from latebind.cli.sources import load_function
from latebind.program.build import build_program
from research.peers import servers
from research.peers.clients import Call, as_base64, written
from research.peers.servers import TORCH, Served, environment

LATEBIND, TRITON = "latebind", "triton"
ROOT = Path(__file__).parents[2]
NEEDED = (TORCH, "openvino", "safetensors")  # by the peers, where a model computes
TIME_OUT = 50_000  # microseconds in Triton's queue: who waited so long would come too late


class Identity(nn.Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to the same."""
        return x * 1.0


@dataclass(frozen=True, slots=True)
class Network:
    """A model as files: a repository of ours, what peers need for it, and the right answer to `rows`.

    Peers have so many `workers`, and batches of at most `batch`.
    """

    name: str
    repository: Path
    rows: Array
    right: Array
    workers: int
    batch: int
    packages: tuple[str, ...] = ()
    more: Mapping[str, str] | None = None


def identity(folder: Path) -> Network:
    """Build `identity`."""
    build_program(
        Identity(),
        {"x": torch.zeros(2, 16)},
        directory=folder / "repository" / "identity" / "1",
        name="identity",
        backends=["eager"],
        max_batch=32,
        output_names=["y"],
    )
    rows = torch.randn(1, 16, generator=torch.Generator().manual_seed(0)).numpy()
    return Network("identity", folder / "repository", rows, rows, workers=1, batch=32)


def resnet(folder: Path, backend: str, seed: int) -> Network:
    """Build ResNet-18 for a backend; a peer's thread answers a hundred images a second, so batches are small."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    module, rows = load_function("examples.cifar10.resnet18:resnet18")().eval(), torch.randn(1, 3, 32, 32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), folder / "weights.safetensors")
    build_program(
        module,
        {"x": torch.randn(4, 3, 32, 32)},
        directory=folder / "repository" / "resnet18" / "1",
        name="resnet18",
        backends=[backend],
        output_names=["y"],
    )
    with torch.inference_mode():
        right = module(rows).numpy()
    batch = 4
    more = {
        "LATEBIND_PEER_CODE": str(ROOT),
        "LATEBIND_PEER_WEIGHTS": str(folder / "weights.safetensors"),
        "LATEBIND_PEER_BACKEND": backend,
        "LATEBIND_PEER_BATCH": str(batch),
        "OMP_NUM_THREADS": "1",
    }
    return Network("resnet18", folder / "repository", rows.numpy(), right, 2, batch, NEEDED, more)


@dataclass(frozen=True, slots=True)
class Side:
    """A server that can be started, and the protocols that it speaks, the one for goodput last."""

    protocols: tuple[Protocol, ...]
    start: Callable[[], AbstractContextManager[Served]]
    binary_path: str = ""  # where binary tensors go, if not where JSON goes

    def call(self, network: Network, protocol: Protocol, timeout: float | None = None) -> Call:
        """Return a call with the network's rows; LitServe takes images as base64."""
        found = written(protocol, network.name, network.rows, timeout=timeout)
        if protocol is Protocol.JSON and network.rows.size > 16:
            return as_base64(found, network.rows)
        return replace(found, path=found.path + self.binary_path) if protocol is Protocol.BINARY else found


def sides(network: Network, peers: Path, folder: Path, options: Sequence[str], *, grpc: bool) -> dict[str, Side]:
    """Return the servers by name, whose environments are in `peers`, and what they write in `folder`.

    `options` are those of `latebind serve`.
    """
    more, name = network.more or {}, network.name

    def made(peer: str) -> Path:
        return environment(peers, peer, *network.packages)

    def ours() -> AbstractContextManager[Served]:
        given = ["--model", name, *options]
        given += ["--workers", str(network.workers), "--threads", "1"] if network.packages else []
        return servers.latebind(network.repository, given, ready=name, log=folder / "latebind.log", grpc=grpc)

    def triton(time_out: int) -> AbstractContextManager[Served]:
        return servers.serve_triton(
            made(TRITON),
            folder / f"{TRITON}-{time_out}",
            name,
            shape=network.rows.shape[1:],
            answer=network.right.shape[1:],
            batch=network.batch,
            instances=network.workers,
            time_out=time_out,
            more=more,
        )

    def python_server(peer: str, ready: str, *words: int) -> AbstractContextManager[Served]:
        log = folder / f"{peer}.log"
        return servers.serve_python(made(peer), peer, name, words, ready=ready, log=log, more=more)

    http = (Protocol.JSON, Protocol.BINARY)
    every = (Protocol.GRPC, *http)
    batch = network.batch if network.packages else 1
    found = {
        LATEBIND: Side(every, ours),
        TRITON: Side(every, partial(triton, 0)),
        "fastapi": Side(http, partial(python_server, "fastapi", "/ready", network.workers), "-binary"),
        "litserve": Side((Protocol.JSON,), partial(python_server, "litserve", "/health", network.workers, batch)),
    }
    if network.packages:
        found["triton, time-outs"] = Side(every, partial(triton, TIME_OUT))
    return found
