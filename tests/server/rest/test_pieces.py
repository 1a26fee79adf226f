"""Pieces of a reply are written no sooner than their client has taken those before."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from latebind.server.rest.pieces import LAST_CHUNK, Flow, write_pieces


class Transport:
    """Keeps what is written, and says after each write that it is too much."""

    def __init__(self, flow: Flow) -> None:
        self.written: list[bytes] = []
        self._flow = flow

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self._flow.pause()

    def is_closing(self) -> bool:
        return False


async def two() -> AsyncGenerator[bytes]:
    yield b"first"
    yield b"second"


def test_a_client_that_takes_nothing_gets_no_more() -> None:
    async def test() -> None:
        flow = Flow()
        transport = Transport(flow)
        writing = asyncio.create_task(write_pieces(cast(Any, transport), flow, two(), chunked=True))
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.written == [b"5\r\nfirst\r\n"]
        flow.resume()
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.written[1:] == [b"6\r\nsecond\r\n"]
        flow.resume()
        await writing
        assert transport.written[2:] == [LAST_CHUNK]

    asyncio.run(asyncio.wait_for(test(), 200))


def test_an_older_client_gets_the_bytes_alone() -> None:
    async def test() -> None:
        flow = Flow()
        transport = Transport(Flow())
        await write_pieces(cast(Any, transport), flow, two(), chunked=False)
        assert transport.written == [b"first", b"second"]

    asyncio.run(asyncio.wait_for(test(), 200))
