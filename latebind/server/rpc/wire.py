"""Protobuf by hand, where that avoids copies of tensors: raw contents are cut out of a message or appended to one."""

from collections.abc import Iterable, Sequence

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits
from latebind.server.rpc.messages import DecodeError, Message, ModelInferRequest

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # kinds of fields
RAW_INPUT = 7 << 3 | BYTES  # ModelInferRequest.raw_input_contents
RAW_OUTPUT = b"\x32"  # ModelInferResponse.raw_output_contents, field 6
INFER_RESPONSE = b"\x12"  # ModelStreamInferResponse.infer_response, field 2
SMALL = 1 << 16  # up to this size protobuf's own parser is faster, and its result cannot be large
MOST_FIELDS = 4096

Raw = Sequence[bytes | memoryview]


def parse(kind: Message, data: bytes) -> Message:
    """Return the message of this class that `data` encode. Raises `InvalidRequest`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the request is no {kind.DESCRIPTOR.name}") from None


def read_request(data: bytes, limits: Limits) -> tuple[Message, Raw]:
    """Return an infer request and its raw contents; for a large request these are views of `data`, not copies.

    Raises `InvalidRequest`, and `TooLarge` if the rest of a large request has more bytes than JSON may have: the parser
    may take 40 times the bytes that it reads.
    """
    if len(data) <= SMALL:
        request = parse(ModelInferRequest, data)
        return request, request.raw_input_contents
    described, raw = split(data)
    if len(described) > limits.json_bytes:
        beside = f"the request has {len(described)} bytes beside raw_input_contents, more than {limits.json_bytes}"
        raise TooLarge(f"{beside}: send tensors in raw_input_contents")
    return parse(ModelInferRequest, described), raw


def split(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Return an infer request without its raw contents, and these contents. Raises `InvalidRequest`."""
    view = memoryview(data)
    described: list[memoryview] = []
    raw: list[memoryview] = []
    at = 0
    while at < len(data):
        begun = at
        tag, at = _varint(data, at)
        content, at = _skip(data, at, tag & 7)
        if tag == RAW_INPUT:
            raw.append(view[content:at])
        else:
            described.append(view[begun:at])
        if at > len(data) or len(raw) + len(described) > MOST_FIELDS:
            raise _broken()
    return b"".join(described), raw


def joined(described: bytes, raw: Iterable[bytes | memoryview]) -> bytes:
    """Return a serialised infer response with these raw contents appended."""
    parts: list[bytes | memoryview] = [described]
    for content in raw:
        parts += (RAW_OUTPUT, varint(memoryview(content).nbytes), content)
    return b"".join(parts)


def in_stream(reply: bytes) -> bytes:
    """Return an infer response wrapped as the response of a stream."""
    return b"".join((INFER_RESPONSE, varint(len(reply)), reply))


def varint(number: int) -> bytes:
    """Return a number in protobuf's variable-length encoding."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _skip(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends."""
    match kind:
        case 0:
            return at, _varint(data, at)[1]
        case 1:
            return at, at + 8
        case 2:
            size, at = _varint(data, at)
            return at, at + size
        case 5:
            return at, at + 4
    raise _broken()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _broken()


def _broken() -> InvalidRequest:
    return InvalidRequest("the request is no ModelInferRequest")
