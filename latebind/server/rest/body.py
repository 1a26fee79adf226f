"""The body of an HTTP request as it arrives, with limits on its bytes. It knows nothing of tensors."""

import sys
from collections.abc import Sequence

from latebind.domain.errors import Refused
from latebind.server.limits import Limits, UnsupportedEncoding, body_too_large
from latebind.server.rest.compression import ALIASES, WINDOWS, Inflater
from latebind.server.rest.messages import Receive

NOTHING = memoryview(b"")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


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
    """Reads a body piece by piece. Raises `TooLarge`, `UnsupportedEncoding`, `ClientGone` and what `receive` raises.

    `size` is the number of bytes that the headers announce, or None; `arrived` is how many have arrived. For a
    compressed body, bytes are those after decompression (`Inflater`, which raises `InvalidRequest` too). Nothing is
    read before it is asked for, so TCP holds back a client whose body has to wait. Before this, the event loop has read
    from the socket into a `bytes`, and the parser has cut the part of the body out of it.

    What `read` collects from several pieces is counted in `held` until `release`; `read` raises `Refused` if that has
    no room for it.
    """

    def __init__(
        self, headers: Sequence[tuple[bytes, bytes]], receive: Receive, limits: Limits, held: Held | None = None
    ) -> None:
        self.size: int | None = None
        self.arrived = 0
        self._receive: Receive = receive
        self._limits = limits
        self._held = held or Held(limits.body_bytes)
        self._collected = 0  # bytes, counted in `_held`
        self._unread = NOTHING
        self._more = True
        for name, value in headers:
            if name == b"content-length":
                self.size = int(value)
            if name == b"content-encoding" and (encoding := value.strip().lower()) not in (b"", b"identity"):
                self._inflate(encoding)
        if self.size is not None and self.size > limits.body_bytes:
            raise body_too_large(limits)
        if isinstance(self._receive, Inflater):
            self.size = None

    async def read(self, size: int | None = None) -> bytes:
        """Return the next `size` bytes, or all; fewer if the body ends before."""
        missing = sys.maxsize if size is None else size
        if await self.available() and len(self._unread) >= missing:
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
            await self._take()
        return bool(self._unread)

    def _inflate(self, encoding: bytes) -> None:
        encoding = ALIASES.get(encoding, encoding)
        if encoding not in WINDOWS or isinstance(self._receive, Inflater):
            raise UnsupportedEncoding("this Content-Encoding is not taken: send the body in gzip or deflate, or plain")
        self._receive = Inflater(self._receive, encoding, self._limits)

    def _cut(self, most: int) -> memoryview:
        unread = self._unread
        if len(unread) <= most:
            self._unread = NOTHING
            return unread
        self._unread = unread[most:]
        return unread[:most]

    async def _take(self) -> None:
        """Receive the next message."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._unread = memoryview(message["body"])
        self._more = message["more_body"]
        self.arrived += len(self._unread)
        if self.arrived > self._limits.body_bytes:
            raise body_too_large(self._limits)
