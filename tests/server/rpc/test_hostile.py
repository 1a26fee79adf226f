"""What no honest client sends: none of it crashes the frontend, and whoever sent it is told that it was theirs."""

from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.server.limits import Limits
from latebind.server.rpc.infer import MOST_FIELDS, SMALL, joined, read_request, varint
from latebind.server.rpc.messages import INFERENCE
from tests.server.rpc.conftest import SERVICE, Raw, X, request

RIGHT = request(raw=[X.tobytes()])
WRITTEN: bytes = RIGHT.SerializeToString()
PADDING = b"\x1a" + varint(SMALL) + b"a" * SMALL  # an id that makes a request large


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.parametrize("method", [method.name for method in INFERENCE.methods if not method.client_streaming])
def test_every_method_refuses_garbage(raw: Raw, method: str) -> None:
    assert raw.refusal(b"\xff" * 100, SERVICE + method)[0] == "INVALID_ARGUMENT"


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
