"""The frontend as a whole: it opens and closes cleanly, sees who hangs up, and mixes nobody's answers up."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import uvloop

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, InvalidRequest
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from latebind.server.listening import families, raise_file_limit
from latebind.server.shared_memory import Reference, Region, Regions, Registration
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE, Response, Site, opened, read_response

ROOT = Path(__file__).parents[2]
STUCK = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
STUCK_CALL = b"POST /v2/models/stuck/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
    len(STUCK),
    STUCK,
)


def begin_stuck_call(site: Site) -> socket.socket:
    """Send a call that is never answered and return when the gateway has it."""
    connection = site.connect()
    connection.sendall(STUCK_CALL)
    site.await_(site.gateway.stuck.wait())
    return connection


def test_a_client_that_hangs_up_cancels_its_call() -> None:
    with opened() as site:
        begin_stuck_call(site).close()
        site.await_(site.gateway.cancelled.wait())
        assert site.is_well()


def test_closing_answers_what_is_under_way_and_refuses_what_is_new() -> None:
    with opened(limits=Limits(drain_seconds=0)) as site, begin_stuck_call(site) as connection:
        site.loop.call_soon_threadsafe(site.frontend.close)
        reply = read_response(connection)
        assert reply.status == 503
        assert "shut down" in reply.json()["error"]
        assert site.gateway.cancelled.is_set()
    with pytest.raises(OSError, match="refused"):
        site.connect()


@pytest.mark.parametrize("accepted", [False, True])
def test_who_is_there_as_the_frontend_closes_is_refused_and_not_reset(accepted: bool) -> None:
    """Whether the frontend has accepted the connection, and not read it yet, or the system alone has."""

    async def test() -> Response:
        async with Frontend(Arithmetic(), FrontendConfig(port=0)) as frontend:
            assert frontend._socket is not None
            with socket.create_connection(("127.0.0.1", frontend.port), timeout=60.0) as connection:
                while accepted and not frontend._app.connections:
                    await asyncio.sleep(0)
                connection.sendall(STUCK_CALL)  # from here on the loop sees nothing until the frontend closes
                frontend.close()
                await frontend.closed()
                return await asyncio.to_thread(read_response, connection)

    reply = uvloop.run(test())
    assert reply.status == 503
    assert "shutting down" in reply.json()["error"]


def test_a_signal_closes_the_frontend_and_the_process_ends_well() -> None:
    program = [sys.executable, "-c", "from tests.server.test_frontend import serve_until_signal; serve_until_signal()"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def serve_until_signal() -> None:
    async def serve() -> None:
        async with Frontend(Arithmetic(), FrontendConfig(port=0)) as frontend:
            frontend.close_on_signals()
            print(frontend.port, flush=True)
            await frontend.closed()

    asyncio.run(serve())


def test_an_address_that_is_taken_is_a_clear_error(site: Site) -> None:
    async def open_again() -> None:
        await Frontend(Arithmetic(), FrontendConfig(port=site.port)).open()

    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {site.port}: it is taken; name another"):
        asyncio.run(open_again())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_at_the_address_of_all_both_versions_of_ip_are_served() -> None:
    with opened(FrontendConfig(host="::", port=0, grpc_port=0)) as site:
        for address in ("127.0.0.1", "::1"):
            for port in (site.port, site.frontend.grpc_port):
                socket.create_connection((address, port), PATIENCE).close()
    assert families("::") == ("IPv4", "IPv6")
    assert (families("::1"), families("0.0.0.0")) == (("IPv6",), ("IPv4",))


# descriptors ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few() -> Iterator[int]:
    """So few files may this process open, until it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    yield soft // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_takes_as_many_descriptors_as_it_may(few: int, caplog: pytest.LogCaptureFixture) -> None:
    raise_file_limit(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > few
    assert hard in (soft, resource.RLIM_INFINITY)
    assert not caplog.records


# Regions of shared memory whose clients take them away again ----------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "client-a").write_bytes(bytes(range(100)))
    return tmp_path


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_region_in_use_survives_its_unregistering_and_is_closed_after_its_last_call(folder: Path) -> None:
    before = open_files()
    regions = Regions(["/client-"], folder=str(folder))
    regions.register("r", Registration("client-a", 50))
    place = regions.place(Reference("r", 8))
    regions.unregister()
    found = np.zeros(8, np.uint8)
    asyncio.run(place.read_into([found]))
    assert found.tolist() == list(range(8))
    assert open_files() == before + 1
    del place
    assert open_files() == before


def test_a_file_that_is_refused_is_closed(folder: Path) -> None:
    before = open_files()
    for size in (101, 200):
        with pytest.raises(InvalidRequest):
            Region(Registration("client-a", size), str(folder))
    assert open_files() == before
