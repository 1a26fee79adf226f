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
from latebind.cli.serve import READY, say_where
from latebind.cli.settings import check_machine, known_keys
from latebind.domain.config import EngineConfig, FrontendConfig, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.engine.client import NAME
from tests.versions import WIDTH, add_version

pytestmark = pytest.mark.usefixtures("nobody_lends")
PATIENCE = 60.0


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


def test_a_machine_is_asked_for_no_core_that_it_has_not(tmp_path: Path) -> None:
    check_machine(EngineConfig(), tmp_path / "events.jsonl")
    with pytest.raises(
        ConfigError, match=r"engine.cores names \[9999\]: nobody may run there; this process runs on \["
    ):
        check_machine(EngineConfig(cores=(9999,)), None)
    with pytest.raises(ConfigError, match="nobody may run there"):
        check_machine(EngineConfig(cores=(10**20,)), None)
    with pytest.raises(ConfigError, match="is not there, make it first"):
        check_machine(EngineConfig(), tmp_path / "nowhere" / "events.jsonl")


def test_an_engine_may_be_given_a_core_that_the_server_was_not_started_on() -> None:
    there = os.sched_getaffinity(0)
    first, last = min(there), max(there)
    os.sched_setaffinity(0, {first})
    try:
        check_machine(EngineConfig(cores=(last,)), None)
        assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, there)


def test_an_unknown_key_is_answered_by_those_that_there_are() -> None:
    assert "port" in known_keys("Object contains unknown field `prot` - at `$.server`")
    assert known_keys("Object contains unknown field `serve`").startswith("; the keys are server, ")
    assert known_keys("Expected `int`, got `str` - at `$.server.port`") == ""


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
        assert server.process.wait(PATIENCE) == 1
        line.close()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_there_is_a_dashboard_the_log_says_so(
    host: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ServeConfig(server=FrontendConfig(host=host))
    with caplog.at_level("INFO"):
        say_where(settings, 8000, None, dashboard=settings.server.shows_dashboard)
    assert caplog.messages == (["look at it: http://127.0.0.1:8000/dashboard/"] if host == "127.0.0.1" else [])
    assert capsys.readouterr().out == f"{READY}http://{host}:8000\n"


def test_the_log_says_which_versions_of_ip_an_address_of_ipv6_serves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        for host in ("::", "::1", "127.0.0.1"):
            say_where(ServeConfig(server=FrontendConfig(host=host)), 8000, None, dashboard=False)
    assert caplog.messages == [
        "listening at [::] over IPv4 and IPv6",
        "listening at [::1] over IPv6",
    ]
