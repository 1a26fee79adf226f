"""HTTP on one connection: what is written behind what, and which connections are closed."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from latebind.domain.config import FrontendConfig
from latebind.server.access import Access, Guard
from latebind.server.limits import Limits
from latebind.server.rest.app import RestApp
from latebind.server.rest.infer import Context
from latebind.server.rest.messages import Reply
from latebind.server.rest.openapi import Route
from latebind.server.rest.protocol import CONTINUE, HIGH_WATER, HttpProtocol, Request
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic
from tests.server.bodies import SCALAR, request
from tests.server.conftest import PATIENCE, Site, opened, read_response, scalar, until
from tests.server.taking import Line, arriving

CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Slow(asyncio.Transport):
    """Keeps what is written: a client takes nothing, so that closing waits."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing


def connected(verb: Callable[[Context, Request], Coroutine[Any, Any, Reply]]) -> tuple[HttpProtocol, Slow, RestApp]:
    """A connection of an application with one verb for whatever is asked of `/`."""
    routes = [Route(method, "/", Access.OPEN, verb) for method in ("GET", "POST")]
    app = RestApp(Service(Arithmetic()), Limits(), FrontendConfig(), Guard(), routes=routes)
    protocol, transport = HttpProtocol(app), Slow()
    protocol.connection_made(transport)
    return protocol, transport, app


async def well(context: Context, request: Request) -> Reply:
    return Reply(b"well")


def test_nothing_is_written_behind_a_refusal_though_the_request_is_answered_meanwhile() -> None:
    async def test() -> None:
        protocol, transport, app = connected(well)
        protocol.data_received(CHUNKED + b"no chunk\r\n")
        await asyncio.gather(*app.tasks)
        assert transport.written.startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" not in transport.written

    asyncio.run(test())


@pytest.mark.parametrize(("version", "told"), [("1.1", CONTINUE), ("1.0", b"")])
def test_only_clients_of_http_1_1_are_told_to_go_on(version: str, told: bytes) -> None:
    async def read(context: Context, request: Request) -> Reply:
        await request.read()
        return Reply()

    async def test() -> None:
        protocol, transport, app = connected(read)
        protocol.data_received(
            b"POST / HTTP/%b\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version.encode()
        )
        await asyncio.sleep(0)  # it waits for the body
        assert transport.written == told
        protocol.data_received(b"x")
        await asyncio.gather(*app.tasks)

    asyncio.run(test())


async def read_all(context: Context, request: Request) -> Reply:
    """Return the body of the request."""
    return Reply(await request.read())


POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize(("begun", "status"), [(b"", b"503"), (b"a", b"200")])
def test_a_connection_that_closes_refuses_only_a_body_of_which_nothing_has_come(begun: bytes, status: bytes) -> None:
    async def test() -> None:
        protocol, transport, app = connected(read_all)
        protocol.data_received(POST + begun)
        await asyncio.sleep(0)  # it waits for the body
        protocol._close_idle()
        protocol.data_received(b"ab"[len(begun) :])
        await asyncio.gather(*app.tasks)
        assert transport.written.startswith(b"HTTP/1.1 %b " % status)

    asyncio.run(test())


def test_a_request_whose_client_goes_within_its_body_ends_without_a_reply() -> None:
    async def test() -> None:
        protocol, transport, app = connected(read_all)
        protocol.data_received(POST + b"a")
        await asyncio.sleep(0)  # it waits for the rest of the body
        protocol.connection_lost(None)
        await asyncio.wait_for(asyncio.gather(*app.tasks), PATIENCE / 4)
        assert not transport.written
        assert not app.context.replies

    asyncio.run(test())


def test_a_connection_is_read_on_behind_a_large_body_so_that_a_hang_up_is_heard() -> None:
    async def test() -> None:
        request = arriving([])
        line = cast(Line, request._connection)
        request.feed(b"x" * (HIGH_WATER + 1))
        request.complete()
        assert line.held
        await request.read()
        assert not line.held

    asyncio.run(test())


# Idle connections -----------------------------------------------------------------------------------------------------


IDLE = 0.5


@pytest.fixture(scope="module")
def impatient() -> Iterator[Site]:
    with opened(limits=Limits(idle_seconds=IDLE)) as site:
        yield site


def drip(connection: socket.socket, content: bytes) -> None:
    for byte in content:
        connection.sendall(bytes([byte]))
        time.sleep(0.01)  # the pace of the attack


def test_a_head_that_comes_byte_by_byte_does_not_hold_a_connection(impatient: Site) -> None:
    head = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 1000
    with impatient.connect() as connection, pytest.raises(ConnectionError):
        drip(connection, head)


def test_a_client_that_takes_no_reply_is_hung_up_on(impatient: Site) -> None:
    values = {"name": "x", "shape": [1, 1024, 1024], "datatype": "FP32", "parameters": {"binary_data_size": 4 << 20}}
    head = json.dumps(request(values, parameters={"binary_data_output": True})).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", impatient.port))
        connection.sendall(
            b"POST /v2/models/large/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (len(head) + (4 << 20), len(head))
        )
        connection.sendall(head + bytes(4 << 20))
        until(lambda: not impatient.frontend._app.connections)
    assert impatient.is_well()


def test_connections_past_their_number_are_refused_and_come_back_once_others_go() -> None:
    with opened(limits=Limits(connections=20)) as site:
        held = [site.connect() for _ in range(20)]
        try:
            with site.connect() as connection:
                reply = read_response(connection)
            assert reply.status == 503
            assert reply.headers["retry-after"] == "1"
            assert "20 connections" in reply.json()["error"]
        finally:
            for one in held:
                one.close()
        until(lambda: not site.frontend._app.connections)
        assert site.post(SCALAR, request(scalar(1.0))).status == 200
