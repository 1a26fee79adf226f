"""What no client should send over gRPC: messages that are none, tensors that lie, names that lead out, no HTTP/2."""

from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.server.rpc.infer import varint
from tests.server.conftest import PATIENCE, SERVICE, Raw, Site
from tests.server.hostile.wire import LEAKS
from tests.server.rpc.conftest import X, outputs, request

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
