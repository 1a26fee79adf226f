"""Infer calls over gRPC whose contents no model could answer."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.errors import Expired
from latebind.server.limits import Limits
from latebind.server.rpc.infer import RpcCodec
from tests.server.arithmetic import one_to_one
from tests.server.conftest import Raw, Site
from tests.server.rpc.conftest import X, given, request


def parameter(**value: Any) -> dict[str, Any]:
    return {"parameters": {name: service_pb2.InferParameter(**each) for name, each in value.items()}}


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
