"""A reply in pieces: each is written when it is there, and no sooner than its client has taken those before it.

A client of HTTP/1.1 gets chunks (RFC 9112, 7.1), an older one plain bytes up to the end of the connection.
"""

from asyncio import Future, WriteTransport, get_running_loop
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

LAST_CHUNK: Final = b"0\r\n\r\n"


class Flow:
    """Whether the client of a connection takes what is written; `is_open` until too much of it is unsent."""

    def __init__(self) -> None:
        self.is_open = True
        self._reopened: Future[None] | None = None

    def pause(self) -> None:
        """Note that too much is unsent."""
        self.is_open = False

    def resume(self) -> None:
        """Note that the client has taken most of it, or has gone."""
        self.is_open = True
        if self._reopened is not None and not self._reopened.done():
            self._reopened.set_result(None)

    async def opened(self) -> None:
        """Return when more may be written. For one task at a time."""
        if not self.is_open:
            self._reopened = get_running_loop().create_future()
            await self._reopened


async def write_pieces(transport: WriteTransport, flow: Flow, pieces: AsyncGenerator[bytes], *, chunked: bool) -> None:
    """Write all pieces, none of them empty. Where this is cancelled, the last chunk is missing: the client sees it."""
    async with aclosing(pieces):
        async for piece in pieces:
            transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await flow.opened()
    if chunked and not transport.is_closing():
        transport.write(LAST_CHUNK)
