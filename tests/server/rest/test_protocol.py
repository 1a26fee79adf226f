"""HTTP on one connection without a socket: what is written behind what."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from latebind.domain.errors import Unavailable
from latebind.server.limits import Limits
from latebind.server.rest.protocol import CONTINUE, UNREAD_SECONDS, HttpProtocol, Lines
from latebind.server.rest.request import Reply, Request

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


def connected(
    answer: Callable[[Request], Awaitable[Reply]], replies: Counter[int] | None = None
) -> tuple[HttpProtocol, Slow, Lines]:
    transport, lines = Slow(), Lines()
    protocol = HttpProtocol(
        lines,
        answer=answer,
        limits=Limits(),
        replies=Counter() if replies is None else replies,
    )
    protocol.connection_made(transport)
    return protocol, transport, lines


async def well(request: Request) -> Reply:
    return Reply(b"well")


def test_nothing_is_written_behind_a_refusal_though_the_request_is_answered_meanwhile() -> None:
    async def test() -> None:
        protocol, transport, lines = connected(well)
        protocol.data_received(CHUNKED + b"no chunk\r\n")
        await asyncio.gather(*lines.tasks)
        assert transport.written.startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" not in transport.written

    asyncio.run(test())


@pytest.mark.parametrize(("version", "told"), [("1.1", CONTINUE), ("1.0", b"")])
def test_only_clients_of_http_1_1_are_told_to_go_on(version: str, told: bytes) -> None:
    async def read(request: Request) -> Reply:
        await request.receive()
        return Reply()

    async def test() -> None:
        protocol, transport, lines = connected(read)
        protocol.data_received(
            b"POST / HTTP/%b\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version.encode()
        )
        await asyncio.sleep(0)  # it waits for the body
        assert transport.written == told
        protocol.data_received(b"x")
        await asyncio.gather(*lines.tasks)

    asyncio.run(test())


async def read_all(request: Request) -> Reply:
    """Return the body of the request, or what refused it."""
    body, more = b"", True
    try:
        while more:
            piece, more = await request.receive()
            body += piece
    except Unavailable as refused:
        return Reply(str(refused).encode(), status=503)
    return Reply(body)


POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize(("begun", "status"), [(b"", b"503"), (b"a", b"200")])
def test_a_connection_that_closes_refuses_only_a_body_of_which_nothing_has_come(begun: bytes, status: bytes) -> None:
    async def test() -> None:
        protocol, transport, lines = connected(read_all)
        protocol.data_received(POST + begun)
        await asyncio.sleep(0)  # it waits for the body
        protocol._close_idle()
        protocol.data_received(b"ab"[len(begun) :])
        await asyncio.gather(*lines.tasks)
        assert transport.written.startswith(b"HTTP/1.1 %b " % status)

    asyncio.run(test())


def test_a_request_that_has_its_turn_while_the_frontend_closes_is_not_waited_for_either() -> None:
    async def test() -> None:
        busy = asyncio.Event()

        async def answer(request: Request) -> Reply:
            if request.method == "POST":
                return await read_all(request)
            await busy.wait()
            return Reply()

        protocol, transport, lines = connected(answer)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + POST)
        protocol.shutdown()
        await asyncio.sleep(2 * UNREAD_SECONDS)
        busy.set()
        while lines.tasks:
            await asyncio.gather(*lines.tasks)
        assert b"HTTP/1.1 503 " in transport.written

    asyncio.run(test())


def test_a_refusal_is_counted_once_by_its_status() -> None:
    async def test() -> None:
        replies: Counter[int] = Counter()
        protocol, _, lines = connected(well, replies)
        protocol.data_received(b"no HTTP\r\n\r\n")
        protocol.data_received(b"no HTTP\r\n\r\n")
        await asyncio.gather(*lines.tasks)
        assert replies == {400: 1}

    asyncio.run(test())
