"""The frontend as a whole: it opens and closes cleanly, sees who hangs up, and mixes nobody's answers up."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server.frontend import Frontend
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
        site.loop.call_soon_threadsafe(site.frontend.close)
        reply = read_response(connection)
        assert reply.status == 503
        assert "shut down" in reply.json()["error"]
        assert site.gateway.cancelled.is_set()
    with pytest.raises(OSError, match="refused"):
        site.connect()


def test_a_closing_frontend_is_not_ready_on_connections_it_already_has() -> None:
    head, _, body = STUCK_CALL.partition(b"\r\n\r\n")
    with opened() as site, site.connect() as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # now the frontend waits for the body
        site.loop.call_soon_threadsafe(site.frontend.close)
        connection.sendall(body)
        reply = read_response(connection)
        assert reply.status == 503
        assert "shutting down" in reply.json()["error"]


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
