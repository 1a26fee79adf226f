"""The body of an HTTP request: read piece by piece within limits and decompressed; and the compression of replies."""

import asyncio
import sys
import zlib
from typing import TypeVar

import msgspec

from latebind.domain.errors import InvalidRequest, Refused, TooLarge
from latebind.server.limits import Limits, UnsupportedEncoding, body_too_large
from latebind.server.rest.request import Request

T = TypeVar("T")

NOTHING = memoryview(b"")
WINDOWS = {b"gzip": 31, b"deflate": 15}  # zlib's `wbits` for each content encoding
ALIASES = {b"x-gzip": b"gzip"}  # RFC 9110, 8.4.1.3
STEP = 1 << 18  # bytes that are decompressed at a time, in about a millisecond
WITHOUT_RATIO = 1 << 20  # a body may grow to so many bytes whatever its ratio
SMALL = 1024  # smaller replies are not compressed
SAMPLE = 1 << 14
WORTH = 0.8  # the share of its size to which a sample must shrink
BRIEF = 1 << 16  # larger replies are compressed on a thread, so that they do not block the event loop
LEVEL = 1


class Held:
    """Counts the bytes in memory of all bodies that are collected before they can be read, such as JSON."""

    def __init__(self, most: int) -> None:
        self.bytes = 0
        self._most = most

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises `Refused`, and counts none of them, if that would be too many."""
        if self.bytes + size > self._most:
            raise Refused(f"the requests that are under way have more than {self._most} bytes: try again later")
        self.bytes += size

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes: they are not needed any more."""
        self.bytes -= size


class Body:
    """Reads a body piece by piece. Raises `TooLarge`, `UnsupportedEncoding` and what `Request.receive` raises.

    `size` is the number of bytes that the headers announce, or None; `arrived` is how many have arrived. For a
    compressed body, bytes are those after decompression, which raises `InvalidRequest` too. Nothing is read before it
    is asked for, so TCP holds back a client whose body has to wait. Before this, the event loop has read from the
    socket into a `bytes`, and the parser has cut the part of the body out of it.

    What `read` collects from several pieces is counted in `held` until `release`; `read` raises `Refused` if that has
    no room for it. Where `as_sent`, the body is not decompressed.
    """

    def __init__(self, request: Request, limits: Limits, held: Held | None = None, *, as_sent: bool = False) -> None:
        length = request.fields.get(b"content-length")
        self.size = None if length is None else int(length)
        self.arrived = 0
        self._receive = request.receive
        self._limits = limits
        self._held = held or Held(limits.body_bytes)
        self._collected = 0  # bytes, counted in `_held`
        self._unread = NOTHING
        self._more = True
        if self.size is not None and self.size > limits.body_bytes:
            raise body_too_large(limits)
        encoding = request.fields.get(b"content-encoding", b"").strip().lower()
        if encoding not in (b"", b"identity") and not as_sent:
            self._receive, self.size = Inflater(request, encoding, limits).receive, None

    async def read(self, size: int | None = None) -> bytes:
        """Return the next `size` bytes, or all; fewer if the body ends before."""
        missing = sys.maxsize if size is None else size
        # A piece has at most what is read of a connection at once, and connections are bounded.
        if await self.available() and (len(self._unread) >= missing or not self._more):
            return bytes(self._cut(missing))
        parts: list[memoryview] = []
        while missing and await self.available():
            part = self._cut(missing)
            self._held.take(len(part))
            self._collected += len(part)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def release(self) -> None:
        """Stop counting what was collected, because the request has ended."""
        self._held.give_back(self._collected)
        self._collected = 0

    async def read_into(self, place: memoryview) -> bool:
        """Fill `place` with the next bytes, and tell whether the body had that many."""
        filled = 0
        while filled < len(place) and await self.available():
            part = self._cut(len(place) - filled)
            place[filled : filled + len(part)] = part
            filled += len(part)
        return filled == len(place)

    async def measure(self) -> int:
        """Return how many bytes the body has. If its headers do not say, the whole body is read first."""
        if self.size is None:
            whole = await self.read()
            self._unread, self.size = memoryview(whole), len(whole)
        return self.size

    async def available(self) -> bool:
        """Tell whether there is more of the body; waits until that is known."""
        while not self._unread and self._more:
            piece, self._more = await self._receive()
            self._unread = memoryview(piece)
            self.arrived += len(piece)
            if self.arrived > self._limits.body_bytes:
                raise body_too_large(self._limits)
        return bool(self._unread)

    def _cut(self, most: int) -> memoryview:
        unread = self._unread
        if len(unread) <= most:
            self._unread = NOTHING
            return unread
        self._unread = unread[most:]
        return unread[:most]


class Inflater:
    """Receives a compressed body and passes it on decompressed, at most `STEP` bytes at a time.

    Raises `InvalidRequest` if it is not in that encoding, and `TooLarge` if it exceeds `body_bytes` as sent, or, beyond
    `WITHOUT_RATIO`, `ratio` times that decompressed.
    """

    def __init__(self, request: Request, encoding: bytes, limits: Limits) -> None:
        encoding = ALIASES.get(encoding, encoding)
        if encoding not in WINDOWS:
            raise UnsupportedEncoding("this Content-Encoding is not taken: send the body in gzip or deflate, or plain")
        self._request = request
        self._encoding = encoding.decode()
        self._limits = limits
        self._stream = zlib.decompressobj(WINDOWS[encoding])
        self._compressed = b""  # what has come and is not decompressed yet
        self._received = self._made = 0
        self._to_come = True

    async def receive(self) -> tuple[bytes, bool]:
        """Return the next piece of the decompressed body, and whether there may be more."""
        if self._compressed:
            await asyncio.sleep(0)  # give other tasks a turn
        else:
            self._compressed, self._to_come = await self._request.receive()
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
            raise InvalidRequest(f"the body goes on after its {self._encoding} stream: send one stream and no more")
        try:
            made = self._stream.decompress(self._compressed, STEP)
        except zlib.error:
            raise InvalidRequest(f"the body is no {self._encoding}, as Content-Encoding says it is") from None
        # A stream that has more output still has at least its checksum unread, so nothing of it is lost here.
        self._compressed = self._stream.unconsumed_tail or self._stream.unused_data
        self._made += len(made)
        if self._made > max(WITHOUT_RATIO, self._received * self._limits.ratio):
            most = self._limits.ratio
            raise TooLarge(f"the body is more than {most} times as large as it was sent: send it without compression")
        return made


async def read_json(request: Request, kind: type[T], limits: Limits) -> T:
    """Read a small body as JSON of this type; an empty one is `{}`. Raises what `Body` raises and `InvalidRequest`."""
    body = await Body(request, limits).read(limits.header_bytes + 1)
    if len(body) > limits.header_bytes:
        raise TooLarge(f"the body has more than {limits.header_bytes} bytes, the most that this call takes: send less")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON is not what this call takes: {error}") from None


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
