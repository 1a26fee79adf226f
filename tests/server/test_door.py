"""The door as a whole: it opens and closes cleanly, sees who hangs up, and mixes nobody's answers up."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError
from latebind.server.door import Door
from latebind.server.limits import Limits
from latebind.server.listening import families
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
        site.loop.call_soon_threadsafe(site.door.close)
        reply = read_response(connection)
        assert reply.status == 503
        assert "shut down" in reply.json()["error"]
        assert site.gateway.cancelled.is_set()
    with pytest.raises(OSError, match="refused"):
        site.connect()


def test_a_closing_door_is_not_ready_on_connections_it_already_has() -> None:
    head, _, body = STUCK_CALL.partition(b"\r\n\r\n")
    with opened() as site, site.connect() as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # now the door waits for the body
        site.loop.call_soon_threadsafe(site.door.close)
        connection.sendall(body)
        reply = read_response(connection)
        assert reply.status == 503
        assert "shutting down" in reply.json()["error"]


@pytest.mark.parametrize("path", [b"/v2/models/stuck/infer", b"/v2/repository/index"])
def test_a_door_that_closes_does_not_wait_for_a_body_of_which_nothing_has_come(path: bytes) -> None:
    with opened() as site, site.connect() as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n" % path
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # now the door waits for the body
        site.loop.call_soon_threadsafe(site.door.close)
        reply = read_response(connection)
    assert reply.status == 503
    assert "is shutting down" in reply.json()["error"]  # and not that there was no time left


@pytest.mark.parametrize("accepted", [False, True])
def test_who_is_there_as_the_door_closes_is_refused_and_not_reset(accepted: bool) -> None:
    """Whether the door has accepted the connection, and not read it yet, or the system alone has."""

    async def test() -> Response:
        async with Door(Arithmetic(), DoorConfig(port=0)) as door:
            assert door._socket is not None
            with socket.create_connection(("127.0.0.1", door.port), timeout=60.0) as connection:
                while accepted and not door._http.lines.open:
                    await asyncio.sleep(0)
                connection.sendall(STUCK_CALL)  # from here on the loop sees nothing until the door closes
                door.close()
                await door.closed()
                return await asyncio.to_thread(read_response, connection)

    reply = uvloop.run(test())
    assert reply.status == 503
    assert "shutting down" in reply.json()["error"]


def test_a_signal_closes_the_door_and_the_process_ends_well() -> None:
    program = [sys.executable, "-c", "from tests.server.test_door import serve_until_signal; serve_until_signal()"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def serve_until_signal() -> None:
    async def serve() -> None:
        async with Door(Arithmetic(), DoorConfig(port=0)) as door:
            door.close_on_signals()
            print(door.port, flush=True)
            await door.closed()

    asyncio.run(serve())


def test_an_address_that_is_taken_is_a_clear_error(site: Site) -> None:
    async def open_again() -> None:
        await Door(Arithmetic(), DoorConfig(port=site.port)).open()

    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {site.port}: it is taken; name another"):
        asyncio.run(open_again())


def test_the_door_listens_on_loopback_alone_unless_told_otherwise(site: Site) -> None:
    assert DoorConfig().host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", site.port), timeout=1.0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_at_the_address_of_all_both_versions_of_ip_are_served() -> None:
    with opened(DoorConfig(host="::", port=0, grpc_port=0)) as site:
        for address in ("127.0.0.1", "::1"):
            for port in (site.port, site.door.grpc_port):
                socket.create_connection((address, port), PATIENCE).close()
    assert families("::") == ("IPv4", "IPv6")
    assert (families("::1"), families("0.0.0.0")) == (("IPv6",), ("IPv4",))
