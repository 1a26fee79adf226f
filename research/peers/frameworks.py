"""FastAPI with uvicorn, LitServe and the bare echo: applications of `apps`; frameworks run in their environment."""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from latebind.bench.client import Array
from research.peers.calls import Call
from research.peers.processes import Served, free_port, running

APPS = Path(__file__).parent / "apps"


@contextmanager
def serve_fastapi(
    environment: Path, model: str, log: Path, *, workers: int = 1, more: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Serve a model of `apps/networks.py` with FastAPI."""
    port = free_port()
    command = [str(environment / "bin" / "python"), str(APPS / "fastapi_app.py"), model, str(port), str(workers)]
    with running(command, http=port, ready="/ready", log=log, more=_alone(more)) as served:
        yield served


@contextmanager
def serve_litserve(
    environment: Path, model: str, log: Path, *, workers: int, batch: int, more: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Serve a model of `apps/networks.py` with LitServe, so many workers of it, batches of so many."""
    port = free_port()
    words = (model, str(port), str(workers), str(batch))
    command = [str(environment / "bin" / "python"), str(APPS / "litserve_app.py"), *words]
    with running(command, http=port, ready="/health", log=log, more=_alone(more)) as served:
        yield served


@contextmanager
def serve_echo(log: Path, *, awake: bool) -> Iterator[Served]:
    """Send each call's tensor back, unread, by this Python; `awake` it keeps a core busy between calls."""
    port = free_port()
    command = [sys.executable, str(APPS / "echo_app.py"), str(port), *(["awake"] if awake else [])]
    with running(command, http=port, ready="/", log=log) as served:
        yield served


def as_base64(call: Call, rows: Array) -> Call:
    """Return a JSON call with its tensor as base64, which LitServe's application reads several times faster."""
    tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "base64": b64encode(rows.tobytes()).decode()}
    return replace(call, data=json.dumps({"inputs": [tensor]}).encode())


def _alone(more: Mapping[str, str]) -> dict[str, str]:
    return {"PYTHONPATH": str(APPS), **more}  # nothing of ours; workers of uvicorn import the application by its name
