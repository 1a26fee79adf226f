"""Comparisons with peers, tried on small servers: calls as bytes, loads, processes, environments, tables."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from latebind.bench.ledger.questions import Protocol
from latebind.bench.server import cpu_seconds
from latebind.domain.errors import ConfigError
from research.peers.clients import Loaded, answer, check, load, play, written
from research.peers.compare import goodput_rows, identity_rows
from research.peers.servers import Served, free_port, restless, running, turn_of, versions
from tests.cluster.small import until
from tests.server.conftest import Site, opened

HTTP = (Protocol.JSON, Protocol.BINARY)
ROWS = np.linspace(-1, 1, 16, dtype=np.float32)[None]
POLLS = """
import sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer

def poll():
    while True:
        sum(range(20_000))
        time.sleep(0.001)

threading.Thread(target=poll, daemon=True).start()
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with opened() as found:
        yield found


@pytest.fixture
def served(site: Site) -> Served:
    return Served(os.getpid(), site.port)


@pytest.mark.parametrize("protocol", HTTP)
def test_a_call_is_answered_and_its_answer_compared(served: Served, protocol: Protocol) -> None:
    call = written(protocol, "double", ROWS)
    assert np.array_equal(answer(served, call), ROWS * 2)
    check(served, call, ROWS * 2, who="ours")
    with pytest.raises(ConfigError, match=r"ours answers .* calls wrong"):
        check(served, call, ROWS, who="ours")
    with pytest.raises(ConfigError, match="answered 503"):
        answer(served, written(protocol, "full", ROWS[:, :1]))


def test_a_server_that_polls_is_found_and_stands_still_while_others_have_their_turn(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    commands = [sys.executable, "-c", POLLS, str(ports[0])], [sys.executable, "-m", "http.server", str(ports[1])]
    with (
        running(commands[0], http=ports[0], ready="/", log=tmp_path / "log") as polls,
        running(commands[1], http=ports[1], ready="/", log=tmp_path / "other") as other,
    ):
        assert restless((polls, other)) == [polls]
        with turn_of(other, [polls]):
            before = cpu_seconds(polls.process)
            assert psutil.Process(polls.process).status() == psutil.STATUS_STOPPED
        until(lambda: cpu_seconds(polls.process) > before)
    with pytest.raises(ProcessLookupError):
        os.kill(polls.process, 0)


@pytest.mark.parametrize(("tool", "protocol"), [("wrk", Protocol.JSON), ("none", Protocol.BINARY)])
def test_clients_count_answers_and_failures(
    served: Served, tool: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "wrk" and shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    if tool == "none":
        monkeypatch.setenv("PATH", "")
    good = load(served, written(protocol, "double", ROWS), clients=2, seconds=1)
    assert good.failed == 0
    assert good.rate > 10
    assert 0 < good.p50 <= good.p99 < 1
    assert good.cpu > 0
    bad = load(served, written(protocol, "failing", ROWS[:, :1]), clients=2, seconds=1)
    assert bad.failed > 0
    assert bad.rate == 0


def test_requests_at_their_times_have_seconds_or_none(served: Served) -> None:
    times = [0.0, 0.01, 0.02]
    answered = asyncio.run(play(served, written(Protocol.BINARY, "double", ROWS, timeout=60.0), times))
    assert answered.shape == (3,)
    assert (answered < 5.0).all()
    refused = asyncio.run(play(served, written(Protocol.BINARY, "full", ROWS[:, :1]), times))
    assert np.isinf(refused).all()


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with (
        pytest.raises(ConfigError, match=r"status 3 .* see .*log"),
        running(command, http=free_port(), ready="/", log=tmp_path / "log"),
    ):
        pass


def test_ratios_are_paired_by_round() -> None:
    rates = (100.0, 400.0, 200.0)
    runs = {
        (Protocol.JSON, 16, side): [Loaded(rate * times, 0.001, 0.002, 0, 1e-5) for rate in rates]
        for side, times in (("triton", 1), ("ours", 3))
    }
    triton, ours = identity_rows(runs, seed=0)
    assert (triton["per s"], ours["per s"]) == (200, 600)
    assert (triton["over triton"], ours["over triton"]) == ("", "3.000 [3.000, 3.000]")


def test_goodput_is_compared_with_the_best_other_round_by_round() -> None:
    counts = {"triton": (40, 50), "fastapi": (10, 20), "latebind": (60, 75)}
    found = {
        side: [np.array([0.01] * n + [0.2] * (80 - n) + [np.inf] * 20) for n in both] for side, both in counts.items()
    }
    rows = goodput_rows({0.8: found}, deadline=0.1, seed=0)
    ours = next(row for row in rows if row["side"] == "latebind")
    assert (ours["load"], ours["requests"], ours["in time"]) == ("80%", 200, "0.675")
    assert ours["over the best other"] == "1.500 [1.500, 1.500] (triton)"
    assert ours["without an answer"] == "20.0%"
    late = {side: [np.array([seconds])] for side, seconds in (("latebind", 0.01), ("triton", 5.0))}
    assert {row["over the best other"] for row in goodput_rows({1.4: late}, deadline=0.1, seed=0)} == {""}


def test_versions_of_peers_are_those_of_the_packages_that_were_asked_for(tmp_path: Path) -> None:
    packages = tmp_path / "litserve" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, version in (("LitServe", "0.2.9"), ("numpy", "1.26.4"), ("other", "1.0")):
        about = packages / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "litserve" / "latebind-peer.txt").write_text("litserve\nnumpy<2\ngone==1")
    assert versions(tmp_path, ("litserve", "triton")) == {"litserve": "litserve 0.2.9, numpy 1.26.4"}
