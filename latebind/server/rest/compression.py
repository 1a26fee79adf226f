"""gzip and deflate (as zlib stream): decompresses bodies in bounded steps, compresses replies where it pays."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits, UnsupportedEncoding, body_too_large

Receive = Callable[[], Awaitable[tuple[bytes, bool]]]  # the next piece of a body, and whether there may be more

WINDOWS = {b"gzip": 31, b"deflate": 15}  # zlib's `wbits` for each content encoding
ALIASES = {b"x-gzip": b"gzip"}  # RFC 9110, 8.4.1.3
STEP = 1 << 18  # bytes that are decompressed at a time, in about a millisecond
WITHOUT_RATIO = 1 << 20  # bytes that a body may grow to whatever its ratio
SMALL = 1024  # smaller replies are not compressed
SAMPLE = 1 << 14
WORTH = 0.8  # the share of its size to which a sample must shrink
BRIEF = 1 << 16  # larger replies are compressed on a thread, so that they do not block the event loop
LEVEL = 1


class Inflater:
    """Receives a compressed body and passes it on decompressed, at most `STEP` bytes at a time.

    Raises `InvalidRequest` if it is not in that encoding, and `TooLarge` if it exceeds `body_bytes` as sent, or if it
    decompresses to more than `WITHOUT_RATIO` and more than `ratio` times its size as sent.
    """

    def __init__(self, receive: Receive, encoding: bytes, limits: Limits) -> None:
        encoding = ALIASES.get(encoding, encoding)
        if encoding not in WINDOWS:
            raise UnsupportedEncoding(
                "this Content-Encoding is not supported: send the body as gzip, deflate, or uncompressed"
            )
        self._receive = receive
        self._encoding = encoding.decode()
        self._limits = limits
        self._stream = zlib.decompressobj(WINDOWS[encoding])
        self._compressed = b""  # received, and not decompressed yet
        self._received = self._made = 0
        self._to_come = True

    async def receive(self) -> tuple[bytes, bool]:
        """Return the next piece of the decompressed body, and whether there may be more."""
        if self._compressed:
            await asyncio.sleep(0)  # give other tasks a turn
        else:
            self._compressed, self._to_come = await self._receive()
            self._received += len(self._compressed)
            if self._received > self._limits.body_bytes:
                raise body_too_large(self._limits)
        piece = self._decompress()
        more = bool(self._compressed) or self._to_come
        if not more and self._received and not self._stream.eof:
            raise InvalidRequest(f"the body ends before its {self._encoding} stream does: send all of it")
        return piece, more

    def _decompress(self) -> bytes:
        if self._stream.eof and self._compressed:
            raise InvalidRequest(f"the body continues after its {self._encoding} stream: send only one stream")
        try:
            made = self._stream.decompress(self._compressed, STEP)
        except zlib.error:
            raise InvalidRequest(f"the body is not {self._encoding}, as its Content-Encoding says") from None
        # A stream that has more output still has at least its checksum unread, so nothing of it is lost here.
        self._compressed = self._stream.unconsumed_tail or self._stream.unused_data
        self._made += len(made)
        if self._made > max(WITHOUT_RATIO, self._received * self._limits.ratio):
            most = self._limits.ratio
            raise TooLarge(f"the body is more than {most} times as large as it was sent: send it without compression")
        return made


def accepted(header: bytes | None) -> bytes | None:
    """Return the encoding to use for a client with this `Accept-Encoding`; None if it accepts neither."""
    if not header:
        return None
    taken = {ALIASES.get(name, name) for name, quality in map(_quality, header.lower().split(b",")) if quality}
    return next((encoding for encoding in WINDOWS if encoding in taken), None)


async def compressed(body: bytes, encoding: bytes) -> bytes | None:
    """Return `body` in this encoding; None if that is not worth the time, as for tensors that look like noise."""
    if len(body) < SMALL or len(_compress(body[:SAMPLE], encoding)) > WORTH * min(len(body), SAMPLE):
        return None
    if len(body) <= BRIEF:
        return _compress(body, encoding)
    return await asyncio.to_thread(_compress, body, encoding)


def _compress(body: bytes, encoding: bytes) -> bytes:
    return zlib.compress(body, LEVEL, WINDOWS[encoding])


def _quality(entry: bytes) -> tuple[bytes, bool]:
    """Return the name of an entry of `Accept-Encoding`, and whether its quality is above 0."""
    name, _, parameter = entry.partition(b";")
    try:
        return name.strip(), float(parameter.replace(b" ", b"").removeprefix(b"q=") or 1) > 0
    except ValueError:
        return name.strip(), False
