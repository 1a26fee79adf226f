"""HTTP on one connection without a socket: what is written behind what."""

import asyncio

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from latebind.server.limits import Limits
from latebind.server.rest.exchange import Exchange
from latebind.server.rest.protocol import CONTINUE, HttpProtocol
from latebind.server.rest.request import Reply

CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


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


async def well(exchange: Exchange) -> Reply:
    return Reply(b"well")


def test_nothing_is_written_behind_a_refusal_though_the_request_is_answered_meanwhile() -> None:
    async def test() -> None:
        transport, state = Slow(), ServerState()
        protocol = HttpProtocol(Config("never:run"), state, {}, answer=well, take=lambda *call: None, limits=Limits())
        protocol.connection_made(transport)
        protocol.data_received(CHUNKED + b"no chunk\r\n")
        await asyncio.gather(*state.tasks)
        assert transport.written.startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" not in transport.written

    asyncio.run(test())


@pytest.mark.parametrize(("version", "told"), [("1.1", CONTINUE), ("1.0", b"")])
def test_only_clients_of_http_1_1_are_told_to_go_on(version: str, told: bytes) -> None:
    async def read(exchange: Exchange) -> Reply:
        await exchange.receive()
        return Reply()

    async def test() -> None:
        transport, state = Slow(), ServerState()
        protocol = HttpProtocol(Config("never:run"), state, {}, answer=read, take=lambda *call: None, limits=Limits())
        protocol.connection_made(transport)
        protocol.data_received(
            b"POST / HTTP/%b\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version.encode()
        )
        await asyncio.sleep(0)  # it waits for the body
        assert transport.written == told
        protocol.data_received(b"x")
        await asyncio.gather(*state.tasks)

    asyncio.run(test())
