"""What a fuzzer makes: never a 5xx, always an error in the protocol's form, always standing.

Bodies and headers of any kind, and shapes of rows that differ in size, over HTTP and gRPC.
"""

import json
from math import prod
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.server.conftest import Raw, Site

SMALL = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4))


def fields(**known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of which every field may be right, wrong or absent."""
    return st.fixed_dictionaries({}, optional={name: right | ANY for name, right in known.items()})


INPUT = fields(
    name=st.just("x"),
    shape=st.just([1, 16]) | st.lists(st.integers(), max_size=3),
    datatype=st.sampled_from(["FP32", "FP16", "BYTES"]),
    data=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16),
    parameters=fields(binary_data_size=st.just(64) | st.integers(), shared_memory_region=st.text()),
)
OUTPUT = fields(name=st.just("y"), parameters=fields(binary_data=st.booleans(), classification=st.integers()))
REQUEST = fields(
    id=st.text(),
    inputs=st.lists(INPUT, min_size=1, max_size=2),
    outputs=st.lists(OUTPUT, max_size=2),
    parameters=fields(timeout=st.integers(), binary_data_output=st.booleans(), sequence_id=st.text()),
)


def check(site: Site, body: bytes, headers: dict[str, str] | None = None) -> None:
    reply = site.post("/v2/models/double/infer", body, headers)
    assert reply.status == 200 or reply.error


@SMALL
@given(REQUEST)
def test_requests_that_are_nearly_right_never_break_the_frontend(site: Site, request_: dict[str, Any]) -> None:
    check(site, json.dumps(request_).encode())


@SMALL
@given(st.binary(max_size=200), st.none() | st.integers(-1, 250) | st.text("0123456789 -+x", max_size=5))
def test_bytes_never_break_the_frontend(site: Site, body: bytes, length: int | str | None) -> None:
    check(site, body, {} if length is None else {"Inference-Header-Content-Length": str(length)})


@SMALL
@given(REQUEST, st.integers(-80, 80), st.binary(max_size=80))
def test_binary_parts_that_are_nearly_right_never_break_the_frontend(
    site: Site, request_: dict[str, Any], off: int, blob: bytes
) -> None:
    head = json.dumps(request_).encode()
    check(site, head + blob, {"Inference-Header-Content-Length": str(len(head) + off)})


# Rows of any size ----------------------------------------------------------------------------------------------------

Shape = tuple[int, ...]
ODD = st.integers(-1, 13) | st.sampled_from([-(1 << 63), 1 << 31, 1 << 62, (1 << 63) - 1])
ROWS = st.sampled_from((1, 1, 2, 3)) | ODD
TEXT = st.tuples(ROWS, ODD)
SHAPES: dict[str, st.SearchStrategy[tuple[Shape, ...]]] = {
    "sound": st.tuples(st.tuples(ROWS, st.just(2) | ODD, ODD)),
    "picture": st.tuples(st.tuples(ROWS, st.just(2), st.sampled_from((4, 8)) | ODD, ODD)),
    "text": st.tuples(TEXT, TEXT) | TEXT.map(lambda shape: (shape, shape)),
}
MOST_VALUES = 10_000


def are_rows(model: str, shapes: tuple[Shape, ...]) -> bool:
    """Return whether these are shapes of rows of a model (`tests/server/arithmetic.py`)."""
    (first, *others), (rows, *sizes) = shapes, shapes[0]
    if any(shape != first for shape in others) or not 1 <= rows <= 64:
        return False
    if model == "text":
        return 2 <= sizes[0] <= 12
    return sizes[0] == 2 and (1 <= sizes[1] <= 9 if model == "sound" else sizes[1] in (4, 8) and 1 <= sizes[2] <= 6)


@SMALL
@given(st.sampled_from(list(SHAPES)), st.data(), st.sampled_from((0, 0, 0, 1, -1)))
def test_rows_of_any_size_are_answered_rightly_or_refused(
    site: Site, raw: Raw, model: str, data: st.DataObject, off: int
) -> None:
    shapes = data.draw(SHAPES[model])
    names, dtype = (("ids", "mask"), np.int64) if model == "text" else (("x",), np.float32)
    counts = [prod(shape) if min(shape) >= 0 and prod(shape) <= MOST_VALUES else 1 for shape in shapes]
    counts[0] = max(0, counts[0] + off)
    values = [
        np.ones(count, dtype) if name == "mask" else np.arange(count, dtype=dtype) % 100
        for name, count in zip(names, counts, strict=True)
    ]
    kind = "INT64" if model == "text" else "FP32"
    tensors = [{"name": name, "shape": shape, "datatype": kind} for name, shape in zip(names, shapes, strict=True)]
    asked = service_pb2.ModelInferRequest(
        model_name=model, inputs=[service_pb2.ModelInferRequest.InferInputTensor(**one) for one in tensors]
    )
    asked.raw_input_contents.extend(each.tobytes() for each in values)
    in_json = json.dumps(
        {"inputs": [{**one, "data": each.tolist()} for one, each in zip(tensors, values, strict=True)]}
    )
    sized = [
        {**one, "parameters": {"binary_data_size": each.nbytes}} for one, each in zip(tensors, values, strict=True)
    ]
    head = json.dumps({"inputs": sized}).encode()
    replies = [
        site.post(f"/v2/models/{model}/infer", in_json.encode()),
        site.post(
            f"/v2/models/{model}/infer",
            head + b"".join([each.tobytes() for each in values]),
            {"Inference-Header-Content-Length": str(len(head))},
        ),
    ]
    if off or not are_rows(model, shapes):
        assert all(reply.error for reply in replies)
        assert raw.refusal(asked.SerializeToString())[0] == "INVALID_ARGUMENT"
        return
    wanted = values[0].reshape(shapes[0])
    wanted = wanted[..., : wanted.shape[-1] // 2] if model == "picture" else wanted if model == "text" else 2 * wanted
    response = raw.infer(asked)
    told = [np.frombuffer(response.raw_output_contents[0], dtype).reshape(response.outputs[0].shape)]
    for reply in replies:
        output = reply.json()["outputs"][0]
        told.append(np.array(output["data"], dtype).reshape(output["shape"]))
    for found in told:
        np.testing.assert_array_equal(found, wanted)
