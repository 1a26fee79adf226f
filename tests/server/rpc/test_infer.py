"""Infer calls over gRPC: raw and typed contents, parameters, and every refusal with its status."""

import time
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import Expired
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.rpc.infer import RpcCodec
from tests.server.arithmetic import one_to_one
from tests.server.conftest import Site
from tests.server.rpc.conftest import Raw, X, given, outputs, request

TYPED: list[tuple[str, str, str, Array]] = [
    ("double", "FP32", "fp32_contents", X),
    ("scalar", "FP64", "fp64_contents", np.array([0.5, 1.5])),
    ("bytes", "UINT8", "uint_contents", np.arange(6, dtype=np.uint8).reshape(1, 2, 3)),
    ("invert", "BOOL", "bool_contents", np.array([[True, False, True]])),
]


@pytest.mark.parametrize(("model", "datatype", "field", "array"), TYPED, ids=[case[0] for case in TYPED])
def test_typed_and_raw_contents_give_the_same_numbers(
    raw: Raw, model: str, datatype: str, field: str, array: Array
) -> None:
    typed = given("x", datatype, array.shape, **{field: array.flatten().tolist()})
    bare = given("x", datatype, array.shape)
    answers = [
        outputs(raw.infer(message))[0]
        for message in (request(model, inputs=[typed]), request(model, inputs=[bare], raw=[array.tobytes()]))
    ]
    expected = ~array if datatype == "BOOL" else array * 2
    for answer in answers:
        np.testing.assert_array_equal(answer, expected.astype(array.dtype))


def test_an_answer_is_the_same_over_http_and_grpc(rpc_site: Site, raw: Raw) -> None:
    a, b = np.array([[[1, 2], [3, 4]]], np.float32), np.array([[-5, 6, 7]])
    inputs = [given("a", "FP32", a.shape), given("b", "INT64", b.shape)]
    reply = raw.infer(request("pair", inputs=inputs, raw=[a.tobytes(), b.tobytes()]))
    body = [
        {"name": "a", "datatype": "FP32", "shape": a.shape, "data": a.flatten().tolist()},
        {"name": "b", "datatype": "INT64", "shape": b.shape, "data": b.flatten().tolist()},
    ]
    plain = rpc_site.post("/v2/models/pair/infer", {"inputs": body}).json()
    assert [output["name"] for output in plain["outputs"]] == [output.name for output in reply.outputs]
    for output, array in zip(plain["outputs"], outputs(reply), strict=True):
        assert output["data"] == array.flatten().tolist()
        assert output["shape"] == list(array.shape)


def parameter(**value: Any) -> dict[str, Any]:
    return {"parameters": {name: service_pb2.InferParameter(**each) for name, each in value.items()}}


@pytest.mark.parametrize("kind", ["int64_param", "uint64_param"])
def test_the_sooner_of_time_out_and_deadline_counts(rpc_site: Site, raw: Raw, kind: str) -> None:
    message = request(raw=[X.tobytes()], **parameter(timeout={kind: 20_000_000}, color={"string_param": "red"}))
    default = request(raw=[X.tobytes()])
    for asked, timeout, seconds in ((message, 60.0, 20.0), (message, 10.0, 10.0), (default, None, 1.0)):
        begun = time.monotonic()
        raw.infer(asked, timeout=timeout)
        deadline, ended = rpc_site.gateway.deadlines[-1], time.monotonic()
        assert begun + seconds - 0.1 < deadline < ended + seconds + 0.1  # gRPC rounds


BYTES = X.tobytes()
PAIR = [given("a", "FP32", (1, 2, 2)), given("b", "INT64", (1, 3))]
REFUSALS: list[tuple[str, Any, str]] = [
    ("unknown input", request(inputs=[given("z")], raw=[BYTES]), "no input 'z'"),
    ("missing input", request("pair", inputs=[]), "missing"),
    ("input twice", request(inputs=[given(), given()], raw=[BYTES] * 2), "twice"),
    ("wrong datatype", request(inputs=[given(datatype="INT32")], raw=[BYTES]), "must be FP32"),
    ("no datatype", request(inputs=[given(datatype="BYTES")], raw=[BYTES]), "not served"),
    ("wrong shape", request(inputs=[given(shape=(2, 15))], raw=[BYTES]), "has shape"),
    ("no shape", request(inputs=[given(shape=())], raw=[BYTES]), "has shape"),
    ("too many rows", request(inputs=[given(shape=(65, 16))], raw=[BYTES]), "1 to 64"),
    ("no rows", request(inputs=[given(shape=(0, 16))], raw=[b""]), "1 to 64"),
    ("negative rows", request(inputs=[given(shape=(-2, 16))], raw=[BYTES]), "1 to 64"),
    ("negative shape", request(inputs=[given(shape=(2, -16))], raw=[BYTES]), "has shape"),
    ("2^63 - 1 rows", request(inputs=[given(shape=(2**63 - 1, 16))], raw=[BYTES]), "1 to 64"),
    ("overflow", request(inputs=[given(shape=(2**62, 2**62))], raw=[BYTES]), "has shape"),
    ("100 dimensions", request(inputs=[given(shape=(1,) * 100)], raw=[BYTES]), "64 at most"),
    ("no contents", request(), "0 values in fp32_contents"),
    ("a byte too few", request(raw=[BYTES[1:]]), "has 127 bytes"),
    ("a byte too many", request(raw=[BYTES + b"a"]), "has 129 bytes"),
    ("contents twice", request(raw=[BYTES, BYTES]), "2 entries"),
    ("contents of one input", request("pair", inputs=PAIR, raw=[bytes(16)]), "no entry in raw_input_contents"),
    ("both", request(inputs=[given(fp32_contents=[1] * 32)], raw=[BYTES]), "send one of them"),
    ("too few values", request(inputs=[given(fp32_contents=[1] * 31)]), "31 values"),
    ("wrong field", request(inputs=[given(fp64_contents=[1] * 32)]), "0 values"),
    (
        "too large a value",
        request("bytes", inputs=[given("x", "UINT8", (1, 2, 3), uint_contents=[256] * 6)]),
        "not UINT8",
    ),
    (
        "no truth",
        request("invert", inputs=[given("x", "BOOL", (1, 3))], raw=[b"\0\1\2"]),
        "a byte above 1",
    ),
    (
        "half precision as contents",
        request("half", inputs=[given("x", "FP16", (1, 4), fp32_contents=[1] * 4)]),
        "send raw_input_contents",
    ),
    (
        "rows differ",
        request("pair", inputs=[given("a", "FP32", (1, 2, 2)), given("b", "INT64", (2, 3))], raw=[b""] * 2),
        "batch of 2 rows",
    ),
    ("unknown output", request(raw=[BYTES], outputs=[{"name": "z"}]), "no output 'z'"),
    ("output twice", request(raw=[BYTES], outputs=[{"name": "y"}] * 2), "twice"),
    ("negative time-out", request(raw=[BYTES], **parameter(timeout={"int64_param": -1})), "timeout"),
    ("time-out in words", request(raw=[BYTES], **parameter(timeout={"string_param": "1 s"})), "1 s"),
    ("true time-out", request(raw=[BYTES], **parameter(timeout={"bool_param": True})), "whole number"),
    ("priority 256", request(raw=[BYTES], **parameter(priority={"uint64_param": 256})), "priority"),
    ("sequence", request(raw=[BYTES], **parameter(sequence_id={"int64_param": 5})), "sequences"),
    ("named sequence", request(raw=[BYTES], **parameter(sequence_id={"string_param": "a"})), "sequ"),
]


@pytest.mark.parametrize(("message", "text"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_what_no_model_could_answer_is_refused(rpc_site: Site, raw: Raw, message: Any, text: str) -> None:
    status, told = raw.refusal(message.SerializeToString())
    assert status == "INVALID_ARGUMENT"
    assert text in told
    assert rpc_site.taken == 0


ONE = [np.ones((1, 1), np.float32).tobytes()]


@pytest.mark.parametrize(
    ("model", "status", "text"),
    [
        ("full", "RESOURCE_EXHAUSTED", "the queue of 'full'"),
        ("late", "DEADLINE_EXCEEDED", "the deadline passed"),
        ("gone", "UNAVAILABLE", "the engine is gone"),
        ("failing", "INTERNAL", "request id"),
        ("crashing", "INTERNAL", "request id"),
    ],
)
def test_errors_of_the_engine_have_their_status(
    raw: Raw, model: str, status: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, told = raw.refusal(request(model, inputs=[given(shape=(1, 1))], raw=ONE).SerializeToString())
    assert found == status
    assert text in told
    assert "/srv" not in told
    if status == "INTERNAL":
        assert told.split()[-1] in caplog.text


def test_a_call_whose_deadline_has_passed_is_not_begun() -> None:
    codec = RpcCodec(one_to_one("double", "float32", 16), Limits())
    with pytest.raises(Expired):
        codec.decode(request(), [BYTES], 0.0)
    assert codec.decode(request(), [BYTES], 1e-9).timeout == 1


def test_a_message_that_is_too_large_is_refused(raw: Raw) -> None:
    status, _ = raw.refusal(request(raw=[bytes(65 << 20)]).SerializeToString())
    assert status == "RESOURCE_EXHAUSTED"


def test_metadata_that_is_too_large_is_refused(raw: Raw) -> None:
    with pytest.raises(grpc.RpcError):
        raw.infer(request(raw=[BYTES]), metadata=(("x-large", "a" * 40_000),))
    assert outputs(raw.infer(request(raw=[BYTES])))
