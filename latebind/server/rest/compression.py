"""gzip and deflate (a zlib stream, as HTTP means it): bodies undone in bounded steps, replies packed where it pays."""

import asyncio
import zlib

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits
from latebind.server.rest.messages import Message, Receive

WINDOWS = {b"gzip": 31, b"deflate": 15}  # what zlib calls the two
STEP = 1 << 18  # bytes that are made at once, in about a millisecond
WITHOUT_RATIO = 1 << 20  # bytes that a body may make of however few
SMALL = 1024  # replies below that go as they are
SAMPLE = 1 << 14
WORTH = 0.8  # of its size is what a sample must come down to
BRIEF = 1 << 16  # bytes that are packed at once; larger ones would keep the event loop from others
LEVEL = 1


class Inflater:
    """Receives for a body that is compressed, and hands on what it was before, at most `STEP` bytes at a time.

    Raises `InvalidRequest` where it is not of that encoding, `TooLarge` where it is beyond its limits: so many bytes
    come in, and as many times more are made of them, past the first of `WITHOUT_RATIO`.
    """

    def __init__(self, receive: Receive, encoding: bytes, limits: Limits) -> None:
        self._receive = receive
        self._encoding = encoding.decode()
        self._limits = limits
        self._stream = zlib.decompressobj(WINDOWS[encoding])
        self._compressed = b""  # what has come and is not undone yet
        self._received = self._made = 0
        self._to_come = True

    async def __call__(self) -> Message:
        """Return the next message of the body as it was."""
        if self._compressed:
            await asyncio.sleep(0)  # others may have a turn
        else:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return message
            self._take(message)
        body = self._decompress()
        more = bool(self._compressed) or self._to_come
        if not more and self._received and not self._stream.eof:
            raise InvalidRequest(f"the body ends before its {self._encoding} stream does: send all of it")
        return {"type": "http.request", "body": body, "more_body": more}

    def _take(self, message: Message) -> None:
        self._compressed, self._to_come = message["body"], message["more_body"]
        self._received += len(self._compressed)
        if self._received > self._limits.body_bytes:
            raise TooLarge(f"the body has more than {self._limits.body_bytes} bytes")

    def _decompress(self) -> bytes:
        if self._stream.eof and self._compressed:
            raise InvalidRequest(f"the body goes on behind its {self._encoding} stream: send one stream and no more")
        try:
            made = self._stream.decompress(self._compressed, STEP)
        except zlib.error:
            raise InvalidRequest(f"the body is no {self._encoding}, as Content-Encoding says it is") from None
        # Even where all but its end was taken in, a stream of which more is to be made has its sum there yet.
        self._compressed = self._stream.unconsumed_tail or self._stream.unused_data
        self._made += len(made)
        if self._made > max(WITHOUT_RATIO, self._received * self._limits.ratio):
            most = self._limits.ratio
            raise TooLarge(f"the body is more than {most} times as large as it was sent: send it without compression")
        return made


def accepted(header: bytes | None) -> bytes | None:
    """Return the encoding to use for a client with this `Accept-Encoding`, None where it takes none."""
    if not header:
        return None
    taken = {name for name, quality in map(_quality, header.lower().split(b",")) if quality}
    return next((encoding for encoding in WINDOWS if encoding in taken), None)


async def compressed(body: bytes, encoding: bytes) -> bytes | None:
    """Return `body` in this encoding, or None where that is not worth its time: tensors often are as good as noise."""
    if len(body) < SMALL or len(_compress(body[:SAMPLE], encoding)) > WORTH * min(len(body), SAMPLE):
        return None
    if len(body) <= BRIEF:
        return _compress(body, encoding)
    return await asyncio.to_thread(_compress, body, encoding)


def _compress(body: bytes, encoding: bytes) -> bytes:
    return zlib.compress(body, LEVEL, WINDOWS[encoding])


def _quality(entry: bytes) -> tuple[bytes, bool]:
    """Return the name of an entry of `Accept-Encoding`, and whether it is wanted at all."""
    name, _, parameter = entry.partition(b";")
    try:
        return name.strip(), float(parameter.replace(b" ", b"").removeprefix(b"q=") or 1) > 0
    except ValueError:
        return name.strip(), False
