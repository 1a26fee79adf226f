"""The clients of `examples/clients` get the answers that the module gives."""

import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

import latebind
from examples.clients.serve import tiny

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The network of the examples, served over HTTP and gRPC: where that is."""
    port = lasting_port()
    folder = tmp_path_factory.mktemp("clients")
    more = ("--grpc-port", str(port), "--deadline-ms", "20000")
    options = {"name": "tiny", "folder": folder, "backends": ("eager",), "arguments": more}
    with latebind.serving(tiny(), torch.randn(4, 8), **options) as url:  # type: ignore[arg-type]
        yield urlsplit(url).netloc, f"127.0.0.1:{port}"


def lasting_port() -> int:
    """Return a port that is free, and that the system gives nobody who asks for any: those lie above."""
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def said(*words: str | Path) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]


def scores() -> list[float]:
    with torch.inference_mode():
        found: list[float] = tiny()(torch.ones(1, 8))[0].tolist()
    return found


def test_python_asks_over_http(places: tuple[str, str]) -> None:
    lines = said(sys.executable, "-m", "examples.clients.over_http", places[0])
    assert numbers(lines)[:3] == pytest.approx(scores(), abs=1e-5)
    assert re.search(r"answered [1-9]", lines)


def test_python_asks_over_grpc(places: tuple[str, str]) -> None:
    lines = said(sys.executable, "-m", "examples.clients.over_grpc", places[1])
    assert numbers(lines)[:3] == pytest.approx(scores(), abs=1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_asks_in_json_and_in_bytes(places: tuple[str, str]) -> None:
    lines = said("/bin/sh", CLIENTS / "curl.sh", f"http://{places[0]}").splitlines()
    assert numbers(lines[-1]) == pytest.approx(scores(), abs=1e-5)
    assert numbers(lines[-2].partition('"data":')[2])[:3] == pytest.approx(scores(), abs=1e-5)
