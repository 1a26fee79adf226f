"""What no honest client sends: none of it crashes the door, and whoever sent it is told that it was theirs."""

import socket
from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits
from latebind.server.rpc.messages import INFERENCE
from latebind.server.rpc.wire import MOST_FIELDS, SMALL, joined, read_request, split, varint
from tests.server.conftest import PATIENCE, Site
from tests.server.rpc.conftest import SERVICE, Raw, X, address, given, outputs, request

RIGHT = request(raw=[X.tobytes()])
WRITTEN: bytes = RIGHT.SerializeToString()
PADDING = b"\x1a" + varint(SMALL) + b"a" * SMALL  # an id that makes a request large


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(100),
    "ones": b"\xff" * 100,
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "json": b'{"model_name": "double"}',
    "half a message": WRITTEN[: len(WRITTEN) // 2],
    "a length past the end": b"\x0a\x7f" + b"a",
    "a length of 2^63": b"\x0a" + varint(2**63),
    "a number without an end": b"\x0a" + b"\x80" * 20,
    "a group": b"\x0b\x0c",
    "a group without an end": b"\x0b" * 1000,
    "a name that is no text": field(1, b"\xff\xfe"),
    "inputs in inputs": field(5, field(5, field(5, b"\xff"))),
    "100,000 empty inputs": field(5, b"") * 100_000,
    "100,000 empty raw contents": field(7, b"") * 100_000,
    "100,000 parameters": b"".join(field(4, field(1, b"%d" % i)) for i in range(100_000)),
    "1,000,000 dimensions": field(1, b"double")
    + field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\x01" * 1_000_000)),
    "10,000 nested messages": b"\x2a\x80\x01" * 10_000,
}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("kind", GARBAGE)
def test_bytes_that_are_no_request_are_refused(rpc_site: Site, raw: Raw, kind: str, size: str) -> None:
    data = GARBAGE[kind] + (PADDING if size == "large" else b"")
    status, told = raw.refusal(data)
    assert status in ("INVALID_ARGUMENT", "NOT_FOUND"), told
    assert len(told) < 1000
    assert rpc_site.is_well()


@pytest.mark.parametrize("method", [method.name for method in INFERENCE.methods if not method.client_streaming])
def test_every_method_refuses_garbage(raw: Raw, method: str) -> None:
    assert raw.refusal(b"\xff" * 100, SERVICE + method)[0] == "INVALID_ARGUMENT"


def test_names_that_no_model_has_are_told_shortly(raw: Raw) -> None:
    for name in ("a" * 100_000, "\0\n\r", "../../etc/passwd", "\U0010ffff" * 1000, "%s%n{}"):
        status, told = raw.refusal(request(name, raw=[X.tobytes()]).SerializeToString())
        assert (status, len(told) < 300) == ("NOT_FOUND", True)
        unknown = request(inputs=[given(name)], raw=[X.tobytes()])
        assert raw.refusal(unknown.SerializeToString())[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("seed", range(4))
def test_a_request_with_a_few_bytes_altered_is_answered_or_refused(raw: Raw, seed: int) -> None:
    random = Random(seed)
    statuses = set()
    for _ in range(50):
        data = bytearray(WRITTEN)
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(len(data) - 128)] = random.randrange(256)
        try:
            raw.call(bytes(data))
        except grpc.RpcError as error:
            statuses.add(error.code().name)
    assert statuses <= {"INVALID_ARGUMENT", "NOT_FOUND"}


def test_garbage_in_a_stream_is_a_refusal_and_the_next_request_is_answered(rpc_site: Site) -> None:
    with grpc.insecure_channel(address(rpc_site)) as channel:
        failing = request("failing", inputs=[given(shape=(1, 1))], raw=[bytes(4)])
        sent = [b"\xff" * 10, WRITTEN, b"", failing.SerializeToString()]
        answers = [
            service_pb2.ModelStreamInferResponse.FromString(answer)
            for answer in channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(sent), timeout=PATIENCE)
        ]
    assert "no ModelInferRequest" in answers[0].error_message
    np.testing.assert_array_equal(outputs(answers[1].infer_response)[0], X * 2)
    assert "no model ''" in answers[2].error_message
    assert "request id" in answers[3].error_message


@pytest.mark.parametrize(
    "sent",
    [b"\0" * 100, b"GET /v2 HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000, b"\x16\x03\x01"],
    ids=["zeros", "http/1.1", "broken frames", "tls"],
)
def test_what_is_no_http_2_ends_its_connection_alone(rpc_site: Site, raw: Raw, sent: bytes) -> None:

    with socket.create_connection(("127.0.0.1", rpc_site.door.grpc_port or 0), timeout=PATIENCE) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert outputs(raw.infer(RIGHT))


def large(**fields: Any) -> bytes:
    """A request that is read by hand."""
    message = request(raw=[X.tobytes(), b"", bytes(SMALL)], id="7", **fields)
    written: bytes = message.SerializeToString()
    return written


def test_a_large_request_read_by_hand_is_what_protobuf_reads() -> None:
    data = large(model_version="3", outputs=[{"name": "y"}])
    found, raw = read_request(data, Limits())
    assert [bytes(content) for content in raw] == [X.tobytes(), b"", bytes(SMALL)]
    found.raw_input_contents.extend(map(bytes, raw))
    assert found == service_pb2.ModelInferRequest.FromString(data)


def test_fields_of_all_kinds_in_any_order_are_kept() -> None:
    unknown = b"".join((varint(100 << 3), varint(5), varint(101 << 3 | 1), bytes(8), varint(102 << 3 | 5), bytes(4)))
    data = field(7, b"abc") + unknown + field(1, b"double") + field(7, b"") + field(3, b"7")
    described, raw = split(data)
    assert [bytes(content) for content in raw] == [b"abc", b""]
    assert described == unknown + field(1, b"double") + field(3, b"7")


def test_raw_contents_of_a_large_request_are_not_copied() -> None:
    data = large()
    _, raw = read_request(data, Limits())
    assert all(isinstance(content, memoryview) and content.obj is data for content in raw)


BROKEN: list[Callable[[], bytes]] = [
    lambda: large()[:-1],
    lambda: large() + b"\x0a",
    lambda: large() + b"\x0a\x05a",
    lambda: large() + b"\x0d\0\0",
    lambda: large() + b"\x09\0\0",
    lambda: large() + b"\x0b",
    lambda: large() + b"\x80" * 11,
    lambda: large() + field(7, b"") * MOST_FIELDS,
]


@pytest.mark.parametrize("data", BROKEN)
def test_a_large_request_that_is_broken_is_refused(data: Callable[[], bytes]) -> None:
    with pytest.raises(InvalidRequest, match="no ModelInferRequest"):
        read_request(data(), Limits())


def test_a_large_request_may_not_describe_more_than_json_may() -> None:
    with pytest.raises(TooLarge, match="more than 1000"):
        read_request(PADDING + WRITTEN, Limits(json_bytes=1000))


def test_a_response_written_by_hand_is_what_protobuf_writes() -> None:
    reply = service_pb2.ModelInferResponse(model_name="double", id="7")
    contents = [X.tobytes(), b"", bytes(300)]
    written = joined(reply.SerializeToString(), [memoryview(content) for content in contents])
    reply.raw_output_contents.extend(contents)
    assert service_pb2.ModelInferResponse.FromString(written) == reply
