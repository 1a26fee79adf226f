"""gRPC's framing on HTTP/2: messages in a stream of bytes, time-outs, statuses and compression. Pure."""

import zlib
from collections.abc import Iterator

from latebind.domain.errors import InvalidRequest, TooLarge

HEAD = 5  # bytes before each message: whether it is compressed, and its length
STATUSES = {
    "OK": 0,
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
WINDOWS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


class Messages:
    """Cuts the bytes of a stream into messages. Raises `TooLarge` and `InvalidRequest`.

    `encoding` is the compression of messages that are marked as compressed; no message may have more than `most` bytes.
    """

    __slots__ = ("_compressed", "_encoding", "_filled", "_head", "_message", "_most")

    def __init__(self, most: int, encoding: bytes = b"") -> None:
        self._most = most
        self._encoding = encoding
        self._head = b""
        self._message: bytearray | None = None
        self._filled = 0
        self._compressed = False

    @property
    def within(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._message is not None or bool(self._head)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the messages that these bytes complete."""
        at = 0
        while at < len(chunk):
            if self._message is None:
                at = self._begin(chunk, at)
            if self._message is not None:
                taken = chunk[at : at + len(self._message) - self._filled]
                self._message[self._filled : self._filled + len(taken)] = taken
                self._filled += len(taken)
                at += len(taken)
                if self._filled == len(self._message):
                    yield self._end()

    def _begin(self, chunk: bytes, at: int) -> int:
        """Read the header of a message; return where its content begins, or the end of the chunk."""
        end = at + HEAD - len(self._head)
        self._head += chunk[at:end]
        if len(self._head) < HEAD:
            return len(chunk)
        flag, size = self._head[0], int.from_bytes(self._head[1:])
        if flag > 1:
            raise InvalidRequest("the message is not framed as gRPC has it")
        if size > self._most:
            raise TooLarge(f"the message has {size} bytes, more than {self._most}: send fewer rows in a call")
        self._head, self._compressed, self._filled = b"", flag == 1, 0
        self._message = bytearray(size)
        return end

    def _end(self) -> bytes:
        assert self._message is not None, "no message has begun"
        whole, self._message = bytes(self._message), None
        return inflated(whole, self._encoding, self._most) if self._compressed else whole


def framed(message: bytes) -> bytes:
    """Return a message with its header."""
    return b"\0" + len(message).to_bytes(4) + message


def seconds(timeout: bytes) -> float:
    """Return the seconds that `grpc-timeout` states. Raises `InvalidRequest`."""
    number, unit = timeout[:-1], UNITS.get(timeout[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        raise InvalidRequest("grpc-timeout is no time-out: send a number of up to 8 digits and a unit")
    return int(number) * unit


def inflated(data: bytes, encoding: bytes, most: int) -> bytes:
    """Return a compressed message decompressed. Raises `InvalidRequest` and `TooLarge`."""
    window = WINDOWS.get(encoding)
    if window is None:
        raise InvalidRequest("the message is compressed in a way that is not known: use gzip, deflate or none")
    inflater = zlib.decompressobj(window)
    try:
        found = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the message is not what grpc-encoding says: {error}") from None
    if len(found) > most:
        raise TooLarge(f"the message has more than {most} bytes once it is decompressed: send fewer rows in a call")
    if not inflater.eof:
        raise InvalidRequest("the message ends before its compressed content does")
    return found


def percent_encoded(text: str) -> bytes:
    """Return a text in the form that `grpc-message` requires."""
    return b"".join([b"%c" % byte if byte in PLAIN else b"%%%02X" % byte for byte in text.encode("utf-8", "replace")])
