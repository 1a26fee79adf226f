"""A frontend with nothing behind it: it sends each call's own tensor back, unread.

It waits for the whole body, and answers correctly where the model returns its input: `inputs` become `outputs`, `x`
becomes `y`. It neither parses HTTP or JSON nor routes, checks, counts, limits, or has anybody compute. Run as
`echo_app.py PORT`, or as `echo_app.py PORT awake` for an echo that never sleeps between calls: what two wake-ups take
is the difference.
"""

import asyncio
import sys
from typing import Any

import uvloop

LENGTH, BINARY = b"\ncontent-length: ", b"\ninference-header-content-length: "
LONGER = len(b"outputs") - len(b"inputs")


def field(head: bytes, name: bytes) -> int:
    """Return a header of a lower-case `head` as a number; 0 where it is not there."""
    _, found, rest = head.partition(name)
    return int(rest[: rest.index(b"\r")]) if found else 0


def answered(head: bytes, body: bytes) -> bytes:
    """Return the answer to a call as it goes to the socket."""
    given = body.replace(b'"inputs"', b'"outputs"', 1).replace(b'"name": "x"', b'"name": "y"', 1)
    length = b""
    if BINARY in head:
        length = b"Inference-Header-Content-Length: %d\r\n" % (field(head, BINARY) + LONGER)
    return b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (length, len(given), given)


class Echo(asyncio.Protocol):
    """One connection; a client waits for its answer before it sends again."""

    def connection_made(self, transport: Any) -> None:
        """Begin to read from one of uvloop's transports."""
        self._transport = transport
        self._read = b""

    def data_received(self, data: bytes) -> None:
        """Answer once all of a call is there."""
        self._read += data
        head, ended, body = self._read.partition(b"\r\n\r\n")
        head = head.lower() + b"\r"
        if ended and len(body) >= field(head, LENGTH):
            self._read = b""
            self._transport.write(answered(head, body))


def stay_awake(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop poll its sockets for ever."""
    loop.call_soon(stay_awake, loop)


async def serve(port: int, *, awake: bool) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", port)
    if awake:
        stay_awake(loop)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), awake=sys.argv[2:] == ["awake"]))
