"""The nghttp2 door by itself: messages in streams of bytes, and clients that use HTTP/2 as no honest one does."""

import asyncio
import gzip
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import given, strategies

from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError, InvalidRequest, TooLarge
from latebind.server.access import Guard
from latebind.server.limits import Limits
from latebind.server.rpc.context import Context
from latebind.server.rpc.exchange import Exchange
from latebind.server.rpc.framing import STATUSES, Messages, framed, inflated, percent_encoded, seconds
from latebind.server.rpc.nghttp2 import Block
from latebind.server.rpc.reception import Reception
from latebind.server.rpc.routes import methods
from latebind.server.service import Service
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE, Site, opened
from tests.server.rpc.conftest import given as tensor
from tests.server.rpc.conftest import request

LEAN = DoorConfig(port=0, grpc_port=0, grpc_stack="nghttp2")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1


# Messages -------------------------------------------------------------------------------------------------------------


@given(strategies.lists(strategies.binary(max_size=40), max_size=6), strategies.integers(0, 2**32))
def test_messages_are_the_same_however_their_bytes_come(messages: list[bytes], seed: int) -> None:
    whole, random, found, cutter = b"".join(map(framed, messages)), Random(seed), list[bytes](), Messages(100)
    while whole:
        size = random.randrange(1, 20)
        found += cutter.feed(whole[:size])
        whole = whole[size:]
    assert found == messages
    assert not cutter.within


def test_what_has_begun_and_not_ended_is_within() -> None:
    cutter = Messages(100)
    for part in (b"\0", b"\0\0\0", b"\2", b"a"):
        assert not list(cutter.feed(part))
        assert cutter.within
    assert list(cutter.feed(b"b")) == [b"ab"]


def test_messages_that_are_too_large_or_not_framed_are_refused() -> None:
    with pytest.raises(TooLarge, match="101 bytes, more than 100"):
        list(Messages(100).feed(framed(bytes(101))))
    with pytest.raises(InvalidRequest, match="not framed"):
        list(Messages(100).feed(b"\2\0\0\0\0"))


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_undone_within_their_limit(encoding: bytes, compress: Callable[[bytes], bytes]) -> None:
    compressed = compress(b"a" * 99)
    message = b"\1" + len(compressed).to_bytes(4) + compressed
    assert list(Messages(100, encoding).feed(message)) == [b"a" * 99]
    with pytest.raises(TooLarge, match="once it is decompressed"):
        inflated(compressed, encoding, 98)
    for broken in (b"", b"\xff" * 20, compressed[:-1]):
        with pytest.raises(InvalidRequest):
            inflated(broken, encoding, 100)
    with pytest.raises(InvalidRequest, match="use gzip, deflate or none"):
        inflated(compressed, b"br", 100)


@pytest.mark.parametrize(("text", "expected"), [(b"1H", 3600.0), (b"250m", 0.25), (b"99999999n", 0.099999999)])
def test_time_outs_are_read(text: bytes, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"-1S", b"1.5S", b"1s", b"123456789S", b"\xb2S"])
def test_time_outs_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no time-out"):
        seconds(text)


def test_messages_of_errors_travel_in_plain_letters() -> None:
    assert percent_encoded("100 % of 'ä'\n") == b"100 %25 of '%C3%A4'%0A"


# Connections ----------------------------------------------------------------------------------------------------------


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that refers to no table."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def head(path: bytes = b"/inference.GRPCInferenceService/ServerLive", *more: bytes, method: bytes = b"POST") -> bytes:
    pairs = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"a")]
    return b"".join([literal(*pair) for pair in [*pairs, (b"content-type", b"application/grpc")]]) + b"".join(more)


MANY = literal(b"a", b"b" * 120) * 80  # 10 kB
CALL = frame(HEADERS, END_HEADERS, 1, head()) + frame(DATA, END_STREAM, 1, bytes(5))


@pytest.fixture(scope="module")
def lean() -> Iterator[Site]:
    with opened(LEAN) as found:
        yield found


@contextmanager
def connected(site: Site, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", site.door.grpc_port or 0), timeout=PATIENCE) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + sent)
        yield connection


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, stream and payload of what comes, until the door ends the connection."""
    received = b""
    while True:
        while len(received) >= 9 and len(received) >= 9 + (size := int.from_bytes(received[:3])):
            kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9])
            yield kind, flags, stream, received[9 : 9 + size]
            received = received[9 + size :]
        try:
            more = connection.recv(1 << 16)
        except ConnectionResetError:
            return
        if not more:
            return
        received += more


def is_answered(site: Site) -> bool:
    """Tell whether a call on a new connection is answered."""
    with connected(site, CALL) as connection:
        return any(kind == DATA and payload == b"\0\0\0\0\2\x08\1" for kind, _, _, payload in first(connection, DATA))


def first(connection: socket.socket, wanted: int) -> Iterator[tuple[int, int, int, bytes]]:
    for found in frames(connection):
        yield found
        if found[0] == wanted:
            return


def test_a_call_written_by_hand_is_answered(lean: Site) -> None:
    assert is_answered(lean)


ENDING = {
    "data on no stream": frame(DATA, 0, 0, b"a"),
    "headers on an even stream": frame(HEADERS, END_HEADERS, 2, head()),
    "a header block that is broken": frame(HEADERS, END_HEADERS, 1, b"\xff" * 30),
    "continuation of nothing": frame(CONTINUATION, END_HEADERS, 1, head()),
    "headers within headers": frame(HEADERS, 0, 1, head()) + frame(HEADERS, END_HEADERS, 3, head()),
    "a frame that is too large": frame(DATA, 0, 1, bytes(20_000)),
    "settings of a wrong size": frame(SETTINGS, 0, 0, b"a" * 5),
    "a ping of a wrong size": frame(PING, 0, 0, b"a"),
    "a window that overflows": frame(8, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,
    "data after the end": CALL[:-14] + frame(DATA, END_STREAM, 1, b"\0") + frame(DATA, 0, 1, b"\0"),
    "headers without end": frame(HEADERS, 0, 1, head())
    + frame(CONTINUATION, 0, 1, literal(b"a", b"b" * 120) * 100) * 20,
}


@pytest.mark.parametrize("sent", ENDING.values(), ids=ENDING.keys())
def test_what_breaks_http_2_ends_its_connection_alone(lean: Site, sent: bytes) -> None:
    with connected(lean, sent) as connection:
        assert not any(kind == DATA for kind, *_ in frames(connection))
    assert is_answered(lean)


@pytest.mark.parametrize(
    "sent",
    [
        frame(HEADERS, 0, 1, head(b"/x", MANY)) + frame(CONTINUATION, END_HEADERS, 1, MANY),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b":method", b"POST")),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, head(b"/x", literal(b"Upper", b"a"))),
    ],
    ids=["too many headers", "no path", "upper case"],
)
def test_a_stream_that_breaks_the_rules_is_reset(lean: Site, sent: bytes) -> None:
    with connected(lean, sent) as connection:
        assert [kind for kind, *_ in first(connection, RST)][-1] == RST
        connection.sendall(frame(HEADERS, END_HEADERS, 3, head()) + frame(DATA, END_STREAM, 3, bytes(5)))
        assert any(stream == 3 for _, _, stream, _ in first(connection, DATA))


# Requests -------------------------------------------------------------------------------------------------------------


class Sent:
    """A wire that keeps the headers of a response."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.were_reset: list[int] = []
        self.acknowledged = 0  # bytes

    def respond(self, stream: int, head: Block, *, data: bool) -> None:
        self.headers = {pair.name: pair.value for pair in head.pairs}

    def resume(self, stream: int) -> None:
        pass

    def reset(self, stream: int) -> None:
        self.were_reset.append(stream)

    def consumed(self, stream: int, size: int) -> None:
        self.acknowledged += size


LIVE = b"/inference.GRPCInferenceService/ServerLive"
STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


def begun(wire: Sent, headers: dict[bytes, bytes]) -> Exchange:
    exchange = Exchange(wire, 1, Reception(Context(Service(Arithmetic()), Limits()), Guard()), 1 << 20)
    exchange.headers = {b":method": b"POST", b"content-type": b"application/grpc", **headers}
    exchange.begin({path.encode(): method for path, method in methods().items()})
    return exchange


def test_what_a_stream_that_ends_has_not_read_takes_no_room_from_its_connection() -> None:
    async def acknowledged() -> tuple[int, int]:
        wire = Sent()
        exchange = begun(wire, {b":path": STREAM})
        for _ in range(100):
            exchange.feed(framed(bytes(1000)))
        before = wire.acknowledged
        exchange.close()
        await asyncio.sleep(0)  # its task is cancelled
        return before, wire.acknowledged

    before, after = asyncio.run(acknowledged())
    assert before < 10_000  # the client was held back
    assert after == 100 * len(framed(bytes(1000)))


def test_a_connection_goes_on_after_streams_whose_clients_left_them_unread(lean: Site) -> None:
    message = request("stuck", inputs=[tensor(shape=(1, 1))], raw=[bytes(4)])
    message.parameters["unknown"].string_param = "a" * 15_000
    sent = framed(message.SerializeToString())
    cancel = struct.pack(">I", 8)
    with connected(lean, b"") as connection:
        room, coming = 0, frames(connection)
        next(coming)  # the door's settings, which hold once they are acknowledged
        connection.sendall(frame(SETTINGS, ACK, 0))
        for stream in range(1, 121, 2):  # together they send three times what may be on its way
            while room < 60 * len(sent):
                kind, _, of, payload = next(coming)
                room += int.from_bytes(payload) if kind == WINDOW_UPDATE and of == 0 else 0
            opening = frame(HEADERS, END_HEADERS, stream, head(STREAM))
            connection.sendall(opening + frame(DATA, 0, stream, sent) * 60 + frame(RST, 0, stream, cancel))
            room -= 60 * len(sent)
    assert is_answered(lean)


@pytest.mark.parametrize(
    ("headers", "chunks", "status"),
    [
        ({}, [], "INVALID_ARGUMENT"),
        ({}, [bytes(4)], "INVALID_ARGUMENT"),
        ({}, [bytes(5), bytes(5)], "INVALID_ARGUMENT"),
        ({}, [bytes(10)], "INVALID_ARGUMENT"),
        ({}, [bytes(5), b"\0"], "INVALID_ARGUMENT"),
        ({}, [b"\0\xff\xff\xff\xff"], "RESOURCE_EXHAUSTED"),
        ({}, [b"\2\0\0\0\0"], "INVALID_ARGUMENT"),
        ({}, [b"\1\0\0\0\1a"], "INVALID_ARGUMENT"),
        ({b":method": b"GET"}, [], "INVALID_ARGUMENT"),
        ({b"content-type": b"text/html"}, [bytes(5)], "INVALID_ARGUMENT"),
        ({b":path": b"/none"}, [bytes(5)], "UNIMPLEMENTED"),
        ({b"grpc-timeout": b"soon"}, [bytes(5)], "INVALID_ARGUMENT"),
    ],
)
def test_a_request_that_is_none_has_its_status(headers: dict[bytes, bytes], chunks: list[bytes], status: str) -> None:
    async def answer() -> Sent:
        wire = Sent()
        exchange = begun(wire, {b":path": LIVE, **headers})
        for chunk in chunks:
            exchange.feed(chunk)
        exchange.end()
        exchange.close()
        return wire

    assert asyncio.run(answer()).headers[b"grpc-status"] == b"%d" % STATUSES[status]


def test_requests_that_have_not_come_to_their_end_count_too(lean: Site) -> None:
    with opened(LEAN, Limits(held_bytes=1000)) as site:
        half = frame(HEADERS, END_HEADERS, 1, head()) + frame(DATA, 0, 1, b"\0\0\0\xff\xff" + bytes(600))
        with connected(site, half) as connection:
            connection.sendall(frame(DATA, 0, 1, bytes(600)))
            *_, (_, flags, _, _) = first(connection, HEADERS)
            assert flags & END_STREAM
        assert is_answered(site)


def test_a_client_that_resets_its_calls_at_once_is_hung_up_on_or_answered(lean: Site) -> None:
    flood = b"".join(
        frame(HEADERS, END_HEADERS, stream, head()) + frame(RST, 0, stream, struct.pack(">I", 8))
        for stream in range(1, 6001, 2)
    )
    with connected(lean, b"") as connection:
        try:
            connection.sendall(flood)
            connection.shutdown(socket.SHUT_WR)
            list(frames(connection))
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert is_answered(lean)


def test_who_does_not_begin_or_does_not_end_a_request_is_not_waited_for() -> None:
    address = "127.0.0.1"
    with (
        opened(LEAN, Limits(idle_seconds=0.2)) as site,
        socket.create_connection((address, site.door.grpc_port or 0), timeout=PATIENCE) as connection,
    ):
        connection.sendall(PREFACE[:10])
        assert DATA not in {kind for kind, *_ in frames(connection)}
    begun = frame(HEADERS, END_HEADERS, 1, head())
    with opened(LEAN, Limits(body_seconds=0.2)) as site, connected(site, begun) as connection:
        *_, (_, flags, stream, _) = first(connection, HEADERS)
        assert (flags & END_STREAM, stream) == (END_STREAM, 1)


def test_a_client_that_is_silent_is_asked_and_hung_up_on_where_it_does_not_answer() -> None:
    with opened(LEAN, Limits(idle_seconds=0.2, silent_seconds=0.2)) as site, connected(site, b"") as connection:
        kinds = [kind for kind, *_ in frames(connection)]  # until the door ends the connection
        assert kinds[-1] == PING


def test_a_client_that_answers_when_it_is_asked_stays() -> None:
    with opened(LEAN, Limits(idle_seconds=1.2, silent_seconds=0.2)) as site, connected(site, b"") as connection:
        asked = 0
        for kind, _, _, payload in frames(connection):
            if kind == PING:
                connection.sendall(frame(PING, ACK, 0, payload))
                asked += 1
            if asked == 2:
                break
        connection.sendall(CALL)
        assert [kind for kind, *_ in first(connection, DATA)][-1] == DATA


def test_without_the_library_the_other_door_is_named() -> None:
    program = (
        "import ctypes.util; ctypes.util.find_library = lambda name: 'libnone.so'\n"
        "from latebind.server.rpc.nghttp2 import Library; Library()"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "install libnghttp2, or take 'official'" in found.stderr


def test_a_stack_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose from official, nghttp2"):
        DoorConfig(grpc_stack="h2")
