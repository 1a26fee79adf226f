"""Infer calls over HTTP and gRPC, from one table: what is answered, what is refused, and with which status."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from latebind.domain.config import FrontendConfig
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from tests.server.arithmetic import RAN, WAITED
from tests.server.bodies import DOUBLE, SCALAR, request
from tests.server.conftest import Raw, Site, opened
from tests.server.rpc.conftest import CONTENTS, outputs

KINDS = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "UINT8": np.uint8, "BOOL": np.bool_}
Given = tuple[str, str, list[int], Any]  # name, datatype, shape and values of an input


def x(shape: list[int] | None = None, datatype: str = "FP32", name: str = "x", values: Any = None) -> Given:
    shape = [1, 16] if shape is None else shape
    return name, datatype, shape, [0] * max(0, min(64, int(np.prod(shape)))) if values is None else values


def text(rows: int, ids: list[int], mask: list[int]) -> tuple[Given, ...]:
    return tuple([x([rows, len(row) // rows], "INT64", name, row) for name, row in (("ids", ids), ("mask", mask))])


ONE = x([1, 1])
A, B = x([1, 2, 2], "FP32", "a", [1, 2, 3, 4]), x([1, 3], "INT64", "b", [-5, 6, 7])


@dataclass(frozen=True)
class Call:
    model: str = "double"
    inputs: tuple[Given, ...] = (x(),)
    outputs: tuple[tuple[str, int], ...] = ()  # names, each with the number of classes
    parameters: dict[str, Any] = field(default_factory=dict)
    version: str = ""

    def as_json(self) -> dict[str, Any]:
        inputs = [dict(zip(("name", "datatype", "shape", "data"), one, strict=True)) for one in self.inputs]
        wanted = [{"name": name, "parameters": {"classification": classes}} for name, classes in self.outputs]
        return {"inputs": inputs, "outputs": wanted, "parameters": self.parameters, "id": "7"}

    def as_binary(self) -> tuple[bytes, dict[str, str]]:
        """Return a body whose tensors follow its JSON, and the header that tells where."""
        arrays: list[Array] = [np.array(values, KINDS[datatype]) for _, datatype, _, values in self.inputs]
        described = self.as_json()
        for one, array in zip(described["inputs"], arrays, strict=True):
            del one["data"]
            one["parameters"] = {"binary_data_size": array.nbytes}
        text = json.dumps(described).encode()
        return text + b"".join(map(bytes, arrays)), {"Inference-Header-Content-Length": str(len(text))}

    def as_message(self, *, typed: bool) -> Any:
        kinds = {int: "int64_param", str: "string_param", bool: "bool_param", float: "double_param"}
        message = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version, id="7")
        for key, value in self.parameters.items():
            setattr(message.parameters[key], kinds[type(value)], value)
        for name, datatype, shape, values in self.inputs:
            given = message.inputs.add(name=name, datatype=datatype, shape=shape)
            if typed:
                getattr(given.contents, CONTENTS[datatype]).extend(values)
            else:
                message.raw_input_contents.append(np.array(values, KINDS.get(datatype, np.float32)).tobytes())
        for name, classes in self.outputs:
            message.outputs.add(name=name).parameters["classification"].int64_param = classes
        return message

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}" + (f"/versions/{self.version}" if self.version else "") + "/infer"


ANSWERED: list[tuple[Call, dict[str, Array]]] = [
    (Call("double", (x(values=list(range(16))),)), {"y": 2.0 * np.arange(16, dtype=np.float32).reshape(1, 16)}),
    (Call("scalar", (x([2], "FP64", values=[0.5, -1.5]),)), {"y": np.array([1.0, -3.0])}),
    (Call("bytes", (x([1, 2, 3], "UINT8", values=list(range(6))),)), {"y": 2 * np.arange(6).reshape(1, 2, 3)}),
    (Call("invert", (x([1, 3], "BOOL", values=[True, False, True]),)), {"y": np.array([[False, True, False]])}),
    (Call("pair", (A, B)), {"sum": np.array([18.0]), "b": np.array([[-5, 6, 7]])}),
    (Call("pair", (B, A), (("b", 0),)), {"b": np.array([[-5, 6, 7]])}),
    (Call("echo", (x([1, 3], "INT64", values=[5, 8, 2]),)), {"y": np.array([[5, 8, 2]])}),
    (Call("text", text(2, [5, 8, 2, 9], [1, 1, 1, 0])), {"y": np.array([[5, 8], [2, 0]]), "length": np.array([2, 1])}),
    (Call("text", text(1, [5] * 12, [1] * 12)), {"y": np.array([[5] * 12]), "length": np.array([12])}),
    (Call("picture", (x([1, 2, 4, 3], values=list(range(24))),)), {"y": np.arange(0, 24, 3.0).reshape(1, 2, 4, 1)}),
]


def test_the_best_of_a_row_are_among_what_it_has(site: Site, raw: Raw) -> None:
    call = Call("text", text(2, [5, 8, 2, 9], [1, 1, 1, 0]), (("y", 3),))
    assert list(raw.infer(call.as_message(typed=False)).outputs[0].shape) == [2, 2]
    (output,) = site.post(call.path, call.as_json()).json()["outputs"]
    assert (output["shape"], output["data"]) == ([2, 2], ["8:1", "5:0", "2:0", "0:1"])


@pytest.mark.parametrize(("call", "right"), ANSWERED, ids=[call.model for call, _ in ANSWERED])
def test_each_way_to_send_a_call_gives_the_same_answer(
    site: Site, raw: Raw, call: Call, right: dict[str, Array]
) -> None:
    for reply in (site.post(call.path, call.as_json()), site.post(call.path, *call.as_binary())):
        told = reply.json()
        assert (told["id"], told["model_name"], told["model_version"]) == ("7", call.model, "1")
        assert [one["name"] for one in told["outputs"]] == list(right)
        for one, array in zip(told["outputs"], right.values(), strict=True):
            assert (one["shape"], one["data"]) == (list(array.shape), array.flatten().tolist())
    for typed in (True, False):
        response = raw.infer(call.as_message(typed=typed))
        assert (response.id, response.model_name, response.model_version) == ("7", call.model, "1")
        assert [one.name for one in response.outputs] == list(right)
        for found, array in zip(outputs(response), right.values(), strict=True):
            np.testing.assert_array_equal(found, array)


BAD, MISSING = (400, "INVALID_ARGUMENT"), (404, "NOT_FOUND")
REFUSED: list[tuple[Call, tuple[int, str], str]] = [
    (Call("none"), MISSING, "there is no model 'none'"),
    (Call(version="9"), MISSING, "has no version '9': it has 1"),
    (Call(inputs=(x(name="z"),)), BAD, "no input 'z'"),
    (Call("pair", (A,)), BAD, "'b' is missing"),
    (Call("pair", ()), BAD, "'a' is missing"),
    (Call(inputs=(x(), x())), BAD, "twice"),
    (Call("pair", (A, x([2, 3], "INT64", "b"))), BAD, "batch of 2 rows"),
    (Call(inputs=(x(datatype="INT32"),)), BAD, "must be FP32"),
    (Call(inputs=(x(datatype="BYTES"),)), BAD, "not served"),
    (Call(inputs=(x([1, 15]),)), BAD, "has shape [1, 15]"),
    (Call(inputs=(x([16]),)), BAD, "one row is [1, 16]"),
    (Call(inputs=(x([]),)), BAD, "has shape"),
    (Call(inputs=(x([65, 16]),)), BAD, "1 to 64"),
    (Call(inputs=(x([0, 16]),)), BAD, "1 to 64"),
    (Call(inputs=(x([-2, 16]),)), BAD, "1 to 64"),
    (Call(inputs=(x([1, -16]),)), BAD, "has shape"),
    (Call(inputs=(x([2**63 - 1, 16]),)), BAD, "1 to 64"),
    (Call(inputs=(x([2**62, 2**62]),)), BAD, "has shape"),
    (Call("echo", (x([1, 7], "INT64"),)), BAD, "length=7: it must be 1 to 6"),
    (Call("echo", (x([1, 0], "INT64"),)), BAD, "length=0: it must be 1 to 6"),
    (Call("text", text(1, [5] * 13, [1] * 13)), BAD, "'ids' has L=13: it must be 2 to 12"),
    (Call("text", text(1, [5], [1])), BAD, "'ids' has L=1: it must be 2 to 12"),
    (Call("text", text(1, [5] * 4, [1] * 3)), BAD, "'mask' has L=3, another input 4: give one size"),
    (Call("text", (x([4], "INT64", "ids"), x([4], "INT64", "mask"))), BAD, "[-1, L], -1 being the batch: one row is"),
    (Call("text", text(1, [5] * 4, [2] * 4)), BAD, "'mask' has values from 2 to 2: they must be 0 to 1"),
    (Call("picture", (x([1, 2, 6, 3]),)), BAD, "'x' has H=6: it must be 4 to 8 in steps of 4"),
    (Call("picture", (x([1, 3, 4, 3]),)), BAD, "must be [-1, 2, H, W], -1 being the batch"),
    (Call("picture", (x([1, 2, -4, 3]),)), BAD, "H=-4"),
    (Call("picture", (x([1, 2, 2**62, 3]),)), BAD, "H="),
    (Call(outputs=(("z", 0),)), BAD, "no output 'z'"),
    (Call(outputs=(("y", 0), ("y", 0))), BAD, "requested twice"),
    (Call(outputs=(("y", 1025),)), BAD, "ask for 1 to 1024"),
    (Call(outputs=(("y", -1),)), BAD, "ask for 1 to 1024"),
    (Call("invert", (x([1, 3], "BOOL", values=[True] * 3),), (("y", 1),)), BAD, "has no classes"),
    (Call(parameters={"timeout": -1}), BAD, "timeout is -1"),
    (Call(parameters={"timeout": "1 s"}), BAD, "int"),
    (Call(parameters={"timeout": True}), BAD, "int"),
    (Call(parameters={"priority": 256}), BAD, "priority is 256"),
    (Call(parameters={"sequence_id": 5}), BAD, "sequences"),
    (Call(parameters={"sequence_id": "a"}), BAD, "sequences"),
    (Call("full", (ONE,)), (503, "RESOURCE_EXHAUSTED"), "the queue of 'full'"),
    (Call("gone", (ONE,)), (503, "UNAVAILABLE"), "the engine is gone"),
    (Call("late", (ONE,)), (504, "DEADLINE_EXCEEDED"), "the deadline passed"),
    (Call("failing", (ONE,)), (500, "INTERNAL"), "internal error, request id 7"),
    (Call("crashing", (ONE,)), (500, "INTERNAL"), "internal error, request id 7"),
    (Call("jammed", (x([1], "FP64"),)), (500, "INTERNAL"), "step 'gate' of jammed raised"),
]


@pytest.mark.parametrize(("call", "statuses", "says"), REFUSED, ids=[says for *_, says in REFUSED])
def test_a_call_that_cannot_be_answered_is_refused_with_the_reason(
    site: Site, raw: Raw, call: Call, statuses: tuple[int, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply, (status, text) = (
        site.post(call.path, call.as_json()),
        raw.refusal(call.as_message(typed=False).SerializeToString()),
    )
    assert (reply.status, status) == statuses
    assert list(reply.json()) == ["error"]
    for told in (reply.json()["error"], text):
        assert says in told or (says == "int" and "whole number" in told)
        assert "/srv" not in told
    assert ("retry-after" in reply.headers) == (reply.status == 503)
    if says.startswith("internal"):
        assert caplog.text.count("request 7 failed") == 2
        assert "/srv" in caplog.text
    assert site.taken == 0


def test_a_deadline_is_the_time_out_or_the_models_default() -> None:
    with opened(FrontendConfig(port=0, deadline=2.0), Limits(deadline=100.0), {"scalar": 7.0}) as site:
        scalar = request({"name": "x", "shape": [1], "datatype": "FP64", "data": [1]})
        for seconds, path, body in (
            (0.25, DOUBLE, request(parameters={"timeout": 250_000})),
            (2.0, DOUBLE, request(parameters={"timeout": 0})),
            (100.0, DOUBLE, request(parameters={"timeout": 2**64 - 1})),
            (7.0, SCALAR, scalar),
        ):
            before = time.monotonic()
            assert site.post(path, body).status == 200
            assert before + seconds <= site.gateway.deadlines[-1] <= time.monotonic() + seconds


@pytest.mark.parametrize("kind", ["int64_param", "uint64_param"])
def test_the_earlier_of_time_out_and_grpc_deadline_counts(site: Site, raw: Raw, kind: str) -> None:
    default = Call().as_message(typed=False)
    message = Call(parameters={"color": "red"}).as_message(typed=False)
    setattr(message.parameters["timeout"], kind, 20_000_000)
    for asked, timeout, seconds in ((message, 60.0, 20.0), (message, 10.0, 10.0), (default, None, 1.0)):
        begun = time.monotonic()
        raw.infer(asked, timeout=timeout)
        deadline, ended = site.gateway.deadlines[-1], time.monotonic()
        assert begun + seconds - 0.1 < deadline < ended + seconds + 0.1  # gRPC rounds


def test_an_answer_tells_where_its_rows_left_and_how_long_they_took(site: Site, raw: Raw) -> None:
    call = Call("scalar", (x([2], "FP64", values=[1, -1]),))
    reply = site.post(call.path, call.as_json())
    assert reply.json()["parameters"] == {"left_at": [2, 0], "stages": 3}
    assert reply.headers["server-timing"] == f"queue;dur={2e3 * WAITED:.3f}, compute;dur={2e3 * RAN:.3f}"
    told = raw.infer(call.as_message(typed=False)).parameters
    assert (told["left_at"].string_param, told["stages"].int64_param) == ("[2,0]", 3)
    assert raw.infer(Call().as_message(typed=False)).parameters["left_at"].int64_param == 2
    with opened(FrontendConfig(port=0, show_exit=False)) as hiding:
        reply = hiding.post(call.path, call.as_json())
        assert "parameters" not in reply.json()
        assert reply.headers["server-timing"] == "queue;dur=0.000, compute;dur=0.000"


def test_what_is_too_large_for_grpc_is_refused_and_calls_go_on(raw: Raw) -> None:
    good = Call().as_message(typed=False)
    large = Call().as_message(typed=False)
    large.raw_input_contents[0] = bytes(65 << 20)
    assert raw.refusal(large.SerializeToString())[0] == "RESOURCE_EXHAUSTED"
    with pytest.raises(grpc.RpcError):
        raw.infer(good, metadata=(("x-large", "a" * 40_000),))
    assert raw.infer(good).id == "7"
