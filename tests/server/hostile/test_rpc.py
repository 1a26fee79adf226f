"""What no client should send over gRPC: messages that are none, tensors that lie, names that lead out, no HTTP/2."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.server.rpc.infer import varint
from tests.server.conftest import PATIENCE, Site
from tests.server.hostile.wire import LEAKS
from tests.server.rpc.conftest import SERVICE, Raw, X, given, outputs, request

GOOD = request(raw=[X.tobytes()])
BLAMED = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}


@pytest.fixture(autouse=True)
def grpc_is_well_afterwards(rpc_site: Site, raw: Raw) -> Iterator[None]:
    yield
    np.testing.assert_array_equal(outputs(raw.infer(GOOD))[0], X * 2)
    assert rpc_site.is_well()
    assert rpc_site.taken == 0


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


CONTENTS: dict[str, Any] = {
    "no bytes": request(raw=[b""]),
    "a byte too few": request(raw=[bytes(127)]),
    "a byte too many": request(raw=[bytes(129)]),
    "two contents for one input": request(raw=[bytes(128), bytes(128)]),
    "no contents": request(inputs=[given()]),
    "contents of two kinds": request(inputs=[given(fp32_contents=[0.0] * 32, int_contents=[1] * 32)], raw=[bytes(128)]),
    "contents of another kind": request(inputs=[given(int64_contents=[0] * 32)]),
    "too few values": request(inputs=[given(fp32_contents=[0.0] * 31)]),
    "a million values": request(inputs=[given(fp32_contents=[0.0] * 1_000_000)]),
    "values that do not fit": request(
        "bytes", inputs=[given(datatype="UINT8", shape=(1, 2, 3), uint_contents=[256] * 6)]
    ),
    "an unknown datatype": request(inputs=[given(datatype="COMPLEX64")], raw=[bytes(128)]),
    "a datatype of a megabyte": request(inputs=[given(datatype="F" * 1_000_000)], raw=[bytes(128)]),
    "the input twice": request(inputs=[given(), given()], raw=[bytes(128), bytes(128)]),
    "an input that is not there": request(inputs=[given("../x")], raw=[bytes(128)]),
    "an input name of lines": request(inputs=[given("x\r\ngrpc-status: 0")], raw=[bytes(128)]),
    "an input name of a megabyte": request(inputs=[given("é" * 500_000)], raw=[bytes(128)]),
    "a model that is a path": request("../../secrets/passwd", raw=[bytes(128)]),
    "a model that is a path to memory": request("/memory/latebind", raw=[bytes(128)]),
    "a model with a zero byte": request("double\0", raw=[bytes(128)]),
    "a model with lines": request("double\ngrpc-message: all is well", raw=[bytes(128)]),
    "a model name of a megabyte": request("a" * 1_000_000, raw=[bytes(128)]),
    "a model without a name": request("", raw=[bytes(128)]),
    "a version that is a path": request(raw=[bytes(128)], model_version="../1"),
    "a version of a megabyte": request(raw=[bytes(128)], model_version="1" * 1_000_000),
    "an id of a megabyte": request(raw=[bytes(128)], id="a" * 1_000_000),
}


@pytest.mark.parametrize("message", CONTENTS.values(), ids=CONTENTS.keys())
def test_requests_that_lie_are_refused(raw: Raw, message: Any) -> None:
    check_clean(raw.refusal(message.SerializeToString()))


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


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")


def frame(kind: int, flags: int, stream: int, content: bytes = b"", *, said: int | None = None) -> bytes:
    size = len(content) if said is None else said
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


NO_HTTP2: dict[str, bytes] = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(10_000),
    "TLS": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "half a preface": PREFACE[:10],
    "a preface and zeros": PREFACE + bytes(10_000),
    "a frame of 16 megabytes": PREFACE + SETTINGS + frame(0, 0, 1, b"x" * 1000, said=2**24 - 1),
    "a frame of an unknown kind": PREFACE + SETTINGS + frame(99, 255, 2**31 - 1, b"x" * 100),
    "data of a stream that is not open": PREFACE + SETTINGS + frame(0, 0, 7, b"x" * 100),
    "headers that never end": PREFACE
    + SETTINGS
    + frame(1, 0, 1, b"\x82")
    + frame(9, 0, 1, b"\x40\x01a\x01b" * 1000) * 50,
    "headers past the table": PREFACE + SETTINGS + frame(1, 5, 1, b"\xff\xff\xff\xff\x0f"),
    "settings that are too large": PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, 2**32 - 1)),
    "10,000 settings": PREFACE + SETTINGS * 10_000,
    "10,000 pings": PREFACE + SETTINGS + frame(6, 0, 0, bytes(8)) * 10_000,
    "5000 streams that are reset at once": PREFACE
    + SETTINGS
    + b"".join(frame(1, 4, 2 * i + 1, b"\x83\x84\x86") + frame(3, 0, 2 * i + 1, bytes(4)) for i in range(5000)),
    "windows that overflow": PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 10,
}


@pytest.mark.parametrize("content", NO_HTTP2.values(), ids=NO_HTTP2.keys())
def test_bytes_that_are_no_http2_harm_nobody(rpc_site: Site, content: bytes) -> None:
    assert rpc_site.frontend.grpc_port is not None
    address = ("127.0.0.1", rpc_site.frontend.grpc_port)
    with socket.create_connection(address, PATIENCE) as connection, suppress(OSError):
        connection.sendall(content)
        connection.settimeout(0.05)  # where nothing comes back, for it may wait for more
        while connection.recv(65536):
            pass


@pytest.mark.parametrize(
    "metadata",
    [
        [("x" * 5000, "a")],
        [("x-bin", b"\0\xff" * 1000)],
        [("x", "y" * 7000)],
        [(f"x{i}", "y") for i in range(100)],
        [("grpc-timeout", "99999999999999999999H")],
        [("content-type", "text/html")],
    ],
    ids=["a long name", "bytes", "a long value", "many", "a second time-out", "another type"],
)
def test_metadata_that_is_odd_harms_nobody(raw: Raw, metadata: list[tuple[str, Any]]) -> None:
    with suppress(ValueError):  # what the client's library does not even send
        try:
            answer = raw.call(GOOD.SerializeToString(), metadata=metadata)
        except grpc.RpcError as error:
            answer = None
            status, text = error.code().name, error.details() or ""
        assert answer or (status in {*BLAMED, "INTERNAL", "UNKNOWN", "UNAVAILABLE"} and not LEAKS.search(text))


def test_a_stream_of_nonsense_answers_each_with_an_error(raw: Raw) -> None:
    requests = [*NO_MESSAGE.values()][:10]
    answers = raw.channel.stream_stream(SERVICE + "ModelStreamInfer")(iter(requests), timeout=PATIENCE)
    found = [service_pb2.ModelStreamInferResponse.FromString(answer) for answer in answers]
    assert len(found) == len(requests)
    for answer in found:
        assert answer.error_message
        assert not LEAKS.search(answer.error_message)
