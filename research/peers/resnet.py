"""ResNet-18 (CIFAR stem, random weights, float32) on every server: two workers of one thread each, the same backend."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from latebind.bench.client import Array
from latebind.bench.ledger.questions import Protocol
from latebind.program.build import build_program
from research.overhead.stages import make_network
from research.peers import servers
from research.peers.clients import Call, as_base64, written
from research.peers.servers import TORCH, Served, environment, latebind
from research.peers.sides import LATEBIND, TRITON, Place, Side

RESNET, SHAPE, CLASSES = "resnet18", (3, 32, 32), 10
WORKERS = 2
BATCH = 4  # of the peers: a thread answers about a hundred images a second, so eight would take most of the deadline
TIMED = "triton, time-outs"
NEEDED = (TORCH, "openvino", "safetensors")
TIME_OUT = 50_000  # microseconds in Triton's queue: who waited so long would come too late
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Network:
    """The network as files: a repository of ours, weights for the peers, and the right answer to `rows`."""

    repository: Path
    backend: str
    environment: Mapping[str, str]
    rows: Array
    right: Array


def make(folder: Path, backend: str, seed: int) -> Network:
    """Build it for a backend."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    module, rows = make_network(RESNET), torch.randn(1, *SHAPE)
    save_file(module.state_dict(), folder / "weights.safetensors")
    repository = folder / "repository"
    build_program(
        module,
        {"x": torch.randn(4, *SHAPE)},
        directory=repository / RESNET / "1",
        name=RESNET,
        backends=[backend],
        output_names=["y"],
    )
    with torch.inference_mode():
        right = module(rows).numpy()
    more = {
        "LATEBIND_PEER_CODE": str(ROOT),
        "LATEBIND_PEER_WEIGHTS": str(folder / "weights.safetensors"),
        "LATEBIND_PEER_BACKEND": backend,
        "LATEBIND_PEER_BATCH": str(BATCH),
        "OMP_NUM_THREADS": "1",
    }
    return Network(repository, backend, more, rows.numpy(), right)


def sides(network: Network) -> dict[str, Side]:
    """Return the servers that can serve it, by name."""
    http = (Protocol.BINARY,)
    return {
        LATEBIND: Side(http, partial(_ours, network)),
        TRITON: Side(http, partial(_triton, network, 0)),
        TIMED: Side(http, partial(_triton, network, TIME_OUT)),
        "fastapi": Side(http, partial(_fastapi, network), "-binary"),
        "litserve": Side((Protocol.JSON,), partial(_litserve, network)),
    }


def call(network: Network, side: Side, deadline: float) -> Call:
    """Return the call that a side is asked, which says how long it may take to those that listen."""
    protocol = side.protocols[0]
    if protocol is Protocol.JSON:
        return as_base64(written(protocol, RESNET, network.rows), network.rows)
    found = written(protocol, RESNET, network.rows, timeout=deadline)
    return replace(found, path=found.path + side.binary_path)


def _ours(network: Network, place: Place) -> AbstractContextManager[Served]:
    options = ["--model", RESNET, "--workers", str(WORKERS), "--threads", "1", *place.options]
    return latebind(network.repository, options, ready=RESNET, log=place.log(f"{LATEBIND}-{RESNET}"), grpc=False)


def _triton(network: Network, time_out: int, place: Place) -> AbstractContextManager[Served]:
    folder = place.folder / f"{TRITON}-{network.backend}-{time_out}"
    folder.mkdir()
    return servers.serve_triton(
        environment(place.environments, TRITON, *NEEDED),
        folder,
        name=RESNET,
        shape=SHAPE,
        answer=(CLASSES,),
        batch=BATCH,
        instances=WORKERS,
        time_out=time_out,
        more=network.environment,
    )


def _fastapi(network: Network, place: Place) -> AbstractContextManager[Served]:
    path = environment(place.environments, "fastapi", *NEEDED)
    log = place.log(f"fastapi-{RESNET}")
    return servers.serve_fastapi(path, RESNET, log, workers=WORKERS, more=network.environment)


def _litserve(network: Network, place: Place) -> AbstractContextManager[Served]:
    path = environment(place.environments, "litserve", *NEEDED)
    log = place.log(f"litserve-{RESNET}")
    return servers.serve_litserve(path, RESNET, log, workers=WORKERS, batch=BATCH, more=network.environment)
