"""Idle connections: those that wait for their client alone are closed, all others are left alone."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from latebind.server.limits import Limits
from latebind.server.rest.protocol import HttpProtocol, Sweeper
from tests.server.bodies import SCALAR, request
from tests.server.conftest import PATIENCE, Site, opened, read_response, scalar
from tests.server.rest.test_connection import ask, binary

IDLE = 0.5


@dataclass(eq=False)
class Line:
    """A connection that is as still as it is told to be."""

    state: object = 0
    given_up: int = field(default=0)

    def idle_state(self) -> object:
        return self.state

    def give_up(self) -> None:
        self.given_up += 1


def test_who_stays_the_same_for_so_long_is_given_up_and_not_before() -> None:
    line, sweeper = Line(), Sweeper(10.0)
    given_up = []
    for now in (0.0, 5.0, 9.9, 10.0):
        sweeper.sweep([cast(HttpProtocol, line)], now)
        given_up.append(line.given_up)
    assert given_up == [0, 0, 0, 1]


# In the frontend ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient() -> Iterator[Site]:
    with opened(limits=Limits(idle_seconds=IDLE)) as site:
        yield site


def until_all_are_closed(site: Site) -> None:
    last = time.monotonic() + PATIENCE
    while site.frontend._app.connections:
        assert time.monotonic() < last, "a connection is still open"
        time.sleep(0.01)


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
        until_all_are_closed(impatient)
    assert impatient.is_well()


def test_a_connection_on_which_calls_are_answered_is_no_idle_one() -> None:
    with opened() as site, site.connect() as connection:
        ask(connection, binary(1.0))
        before = idle_state(site)
        ask(connection, binary(1.0))
        assert None is not idle_state(site) != before


def idle_state(site: Site) -> object:
    """Return what the sweeper is told of the only connection, in the frontend's own time."""

    async def told() -> object:
        (connection,) = site.frontend._app.connections
        return connection.idle_state()

    return site.await_(told())


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
        until_all_are_closed(site)
        assert site.post(SCALAR, request(scalar(1.0))).status == 200
