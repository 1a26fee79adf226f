"""`latebind serve` as a process: what signals do, and what is left when it ends."""

import os
import signal
import time
from pathlib import Path
from shutil import copytree
from urllib.request import urlopen

import psutil
import pytest
import torch

from latebind.bench.client import Caller, Line, encode, written
from latebind.bench.server import launched
from latebind.engine.client import NAME
from latebind.forks.lending import VARIABLE
from tests.versions import WIDTH, add_version

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def nobody_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server has all processes of its own, as where nobody has imported anything before."""
    monkeypatch.delenv(VARIABLE)


def factor(url: str) -> float:
    caller = Caller(url, "scale")
    (rows,) = caller(encode({"x": torch.ones(1, WIDTH).numpy()}, timeout=30.0)).outputs.values()
    caller.close()
    return float(rows[0, 0])


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/v2/health/ready", timeout=PATIENCE) as reply:
            return bool(reply.status == 200)
    except OSError:  # refused, or not ready
        return False


@pytest.mark.slow
def test_on_hang_up_the_server_looks_for_new_versions_and_serves_them(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    add_version(tmp_path / "models", "scale", 1, 2.0)
    later = add_version(tmp_path / "later", "scale", 2, 3.0)
    with launched(tmp_path / "models") as server:
        assert factor(server.url) == 2.0
        copytree(later, tmp_path / "models" / "scale" / "2")
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while factor(server.url) == 2.0:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert factor(server.url) == 3.0


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once_with_all_its_processes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    add_version(tmp_path, "scale", 1, 2.0)
    with launched(tmp_path) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert children
        (engine,) = [child for child in children if child.name() == NAME]
        os.kill(engine.pid, signal.SIGSTOP)  # a call that would hold the server up
        line = Line(server.url)
        line.send(written(line.host, "scale", encode({"x": torch.ones(1, WIDTH).numpy()}, timeout=30.0)))
        assert is_ready(server.url)  # what came on another connection before was read before
        server.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while is_ready(server.url):
            assert time.monotonic() < until
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=10.0) == 1
        line.close()
        _, alive = psutil.wait_procs(children, timeout=5.0)
        assert not alive
