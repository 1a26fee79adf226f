"""What no client should send over gRPC: messages that are none, contents that lie, methods that are not there."""

from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import Expired, TooLarge
from latebind.server.limits import Limits
from latebind.server.rpc.infer import SMALL, RpcCodec, read_request, varint
from tests.server.arithmetic import one_to_one
from tests.server.conftest import PATIENCE, SERVICE, Raw, Site
from tests.server.hostile.wire import LEAKS
from tests.server.rpc.conftest import X, given, outputs, request

GOOD = request(raw=[X.tobytes()])
BLAMED = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}


@pytest.fixture(autouse=True)
def grpc_is_well_afterwards(site: Site, raw: Raw) -> Iterator[None]:
    yield
    np.testing.assert_array_equal(outputs(raw.infer(GOOD))[0], X * 2)
    assert site.is_well()
    assert site.taken == 0


def check_clean(refusal: tuple[str, str]) -> str:
    """See that a call failed by the client's fault and tells nothing of the server's inside; return the text."""
    status, text = refusal
    assert status in BLAMED, refusal
    assert len(text) <= 1000
    assert "\n" not in text
    assert not LEAKS.search(text)
    return text


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


LONG = bytes(70_000)  # past what protobuf's own parser gets
NO_MESSAGE: dict[str, bytes] = {
    "zeros": bytes(100),
    "ones": b"\xff" * 100,
    "a number that never ends": b"\x80" * 100,
    "a large number that never ends": b"\x80" * 70_000,
    "half a field": GOOD.SerializeToString()[:-1],
    "half a field of a large message": field(1, b"double") + b"\x3a\xff\xff\xff\x7f" + LONG,
    "a length of 2 to the 64 less one": b"\x0a" + b"\xff" * 9 + b"\x01" + LONG,
    "a length below zero": b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + LONG,
    "a kind that does not exist": b"\x0e" + LONG,
    "a group that is not closed": b"\x0b" + LONG,
    "10,000 groups in each other": b"\x0b" * 10_000,
    "the name as a number": b"\x08\x01",
    "the shape as a text": field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\xff\xff")),
    "text that is no UTF-8": field(1, b"\xff\xfe\xfd"),
    "JSON": b'{"model_name": "double"}',
    "5000 raw contents of a large message": field(1, b"double") + field(7, b"1") * 5000 + field(7, LONG),
    "5000 empty inputs": field(1, b"double") + field(5, b"") * 5000,
    "parameters without names": field(1, b"double") + field(4, b"") * 100,
}


@pytest.mark.parametrize("data", NO_MESSAGE.values(), ids=NO_MESSAGE.keys())
def test_bytes_that_are_no_request_are_refused(raw: Raw, data: bytes) -> None:
    check_clean(raw.refusal(data))


@pytest.mark.parametrize(
    "method",
    [
        "/inference.GRPCInferenceService/Nothing",
        "/inference.GRPCInferenceService/__init__",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/../../etc/passwd",
        "/inference.GRPCInferenceService/" + "a" * 5000,
        SERVICE + "RepositoryModelLoad",
        SERVICE + "RepositoryModelUnload",
        SERVICE + "SystemSharedMemoryRegister",
        SERVICE + "CudaSharedMemoryRegister",
    ],
)
def test_methods_that_are_not_there_or_not_turned_on_are_refused(raw: Raw, method: str) -> None:
    status, text = raw.refusal(b"", method)
    assert status in {*BLAMED, "PERMISSION_DENIED"}
    assert not LEAKS.search(text)


def test_a_stream_of_nonsense_answers_each_with_an_error(raw: Raw) -> None:
    requests = [*NO_MESSAGE.values()][:10]
    answers = raw.channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(requests), timeout=PATIENCE)
    found = [service_pb2.ModelStreamInferResponse.FromString(answer) for answer in answers]
    assert len(found) == len(requests)
    for answer in found:
        assert answer.error_message
        assert not LEAKS.search(answer.error_message)


# What no honest client sends ------------------------------------------------------------------------------------------


RIGHT = request(raw=[X.tobytes()])
WRITTEN: bytes = RIGHT.SerializeToString()
PADDING = b"\x1a" + varint(SMALL) + b"a" * SMALL  # an id that makes a request large


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


def test_a_large_request_may_not_describe_more_than_json_may() -> None:
    with pytest.raises(TooLarge, match="more than 1000"):
        read_request(PADDING + WRITTEN, Limits(json_bytes=1000))


# Infer calls over gRPC whose contents no model could answer -----------------------------------------------------------


BYTES = X.tobytes()
PAIR = [given("a", "FP32", (1, 2, 2)), given("b", "INT64", (1, 3))]
REFUSALS: list[tuple[Any, str]] = [
    (request(inputs=[given(shape=(1,) * 100)], raw=[BYTES]), "64 at most"),
    (request(), "0 values in fp32_contents"),
    (request(raw=[BYTES[1:]]), "has 127 bytes"),
    (request(raw=[BYTES + b"a"]), "has 129 bytes"),
    (request(raw=[BYTES, BYTES]), "2 entries"),
    (request("pair", inputs=PAIR, raw=[bytes(16)]), "no entry in raw_input_contents"),
    (request(inputs=[given(fp32_contents=[1] * 32)], raw=[BYTES]), "send one of them"),
    (request(inputs=[given(fp32_contents=[1] * 31)]), "31 values"),
    (request(inputs=[given(fp32_contents=[0.0] * 1_000_000)]), "1000000 values"),
    (request(inputs=[given(fp64_contents=[1] * 32)]), "0 values"),
    (request("bytes", inputs=[given("x", "UINT8", (1, 2, 3), uint_contents=[256] * 6)]), "not UINT8"),
    (request("invert", inputs=[given("x", "BOOL", (1, 3))], raw=[b"\0\1\2"]), "a byte above 1"),
    (request("half", inputs=[given("x", "FP16", (1, 4), fp32_contents=[1] * 4)]), "send raw_input_contents"),
    (request(raw=[BYTES], id="a" * 1_000_000), "1024 at most"),
    (request(inputs=[given("x\r\ngrpc-status: 0")], raw=[BYTES]), "has no input"),
    (request(inputs=[given(datatype="F" * 1_000_000)], raw=[BYTES]), "must be FP32"),
]


@pytest.mark.parametrize(("message", "text"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_what_no_model_could_answer_is_refused(site: Site, raw: Raw, message: Any, text: str) -> None:
    status, told = raw.refusal(message.SerializeToString())
    assert status == "INVALID_ARGUMENT"
    assert text in told
    assert site.taken == 0


def test_a_call_whose_deadline_has_passed_is_not_begun() -> None:
    codec = RpcCodec(one_to_one("double", "float32", 16), Limits())
    with pytest.raises(Expired):
        codec.decode(request(), [BYTES], 0.0)
    assert codec.decode(request(), [BYTES], 1e-9).timeout == 1
