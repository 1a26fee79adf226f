"""The codec alone: what goes in comes out, compressed or not, and what does not fit is refused."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim
from latebind.server.calls import DATATYPES
from latebind.server.gateway import BFLOAT16, Answer, Array
from latebind.server.limits import Limits
from latebind.server.rest.compression import Inflater, accepted
from latebind.server.rest.infer import Codec, check_depth
from tests.server.arithmetic import SPECS, one_to_one
from tests.server.bodies import DOUBLE, request
from tests.server.conftest import Site
from tests.server.taking import take

LIMITS = Limits()
MODELS = {spec.name: spec for spec in SPECS}


def codec(dtype: str = "int16", shape: tuple[int, ...] = (3,)) -> Codec:
    return Codec(one_to_one("m", dtype, *shape), LIMITS)


def body(*inputs: dict[str, Any], **rest: object) -> bytes:
    return json.dumps({"inputs": list(inputs), **rest}).encode()


def binary(array: Array, **rest: object) -> tuple[bytes, int]:
    name = DATATYPES[array.dtype.name]
    parameters = {"binary_data_size": array.nbytes}
    head = body({"name": "x", "shape": list(array.shape), "datatype": name, "parameters": parameters}, **rest)
    return head + array.tobytes(), len(head)


def tensors(dtypes: list[str]) -> st.SearchStrategy[Array]:
    shapes = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)
    elements = {"allow_nan": False, "allow_infinity": False}
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: arrays.arrays(dtype, shapes, elements=elements if dtype.startswith("float") else None)
    )


@given(
    tensors([name for name in DATATYPES if name != BFLOAT16]),
    st.sampled_from((1 << 30, 1, 7, 64)),
    st.booleans(),
    st.booleans(),
)
def test_tensors_come_through_and_so_do_answers(array: Array, chunk: int, nested: bool, as_json: bool) -> None:
    """In binary, in chunks of any size, and in JSON, flat or nested."""
    as_json = as_json and array.dtype != np.float16
    subject = codec(array.dtype.name, array.shape[1:])
    call = take(subject, *binary(array, parameters={"binary_data_output": not as_json}), chunk=chunk)
    assert call.rows["x"].dtype == array.dtype
    np.testing.assert_array_equal(call.rows["x"], array)
    if as_json:
        data = array.tolist() if nested else array.reshape(-1).tolist()
        given_input = {"name": "x", "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name], "data": data}
        np.testing.assert_array_equal(take(subject, body(given_input)).rows["x"], array)
    text, blobs = subject.encode(Answer({"y": array}, (0,) * len(array)), call.call, {})
    (output,) = json.loads(text)["outputs"]
    assert output["shape"] == list(array.shape)
    assert bool(blobs) == (not as_json)
    found = np.array(output["data"], array.dtype) if as_json else np.frombuffer(b"".join(blobs), array.dtype)
    np.testing.assert_array_equal(found.reshape(array.shape), array)


def test_inputs_may_mix_json_and_binary_in_any_order() -> None:
    b = {"name": "b", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
    a = {"name": "a", "shape": [1, 2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    for inputs in ((a, b), (b, a)):
        head = body(*inputs)
        call = take(Codec(MODELS["pair"], LIMITS), head + np.arange(4, dtype=np.float32).tobytes(), len(head))
        np.testing.assert_array_equal(call.rows["a"], [[[0, 1], [2, 3]]])
        np.testing.assert_array_equal(call.rows["b"], [[1, 2, 3]])


def test_requested_outputs_override_the_binary_default() -> None:
    outputs = [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "b"}]
    a = {"name": "a", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
    b = {"name": "b", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
    call = Codec(MODELS["pair"], LIMITS).decode(body(a, b, outputs=outputs))
    assert [(output.tensor.name, output.binary) for output in call.wanted] == [("sum", True), ("b", False)]


def test_binary_sizes_that_do_not_add_up_are_refused() -> None:
    content, json_bytes = binary(np.zeros((1, 3), np.int16))
    for wrong in (content[:-1], content + b"\0"):
        with pytest.raises(InvalidRequest, match="but the body has"):
            take(codec(), wrong, json_bytes)
    with pytest.raises(InvalidRequest, match="but the body has"):
        take(codec(), content, len(content) + 1)
    with pytest.raises(InvalidRequest, match="not an infer request"):
        take(codec(), content, json_bytes - 1)
    for size in (0, -6, 5, 2**64):
        with pytest.raises(InvalidRequest, match="need 6"):
            codec().decode(
                body({"name": "x", "shape": [1, 3], "datatype": "INT16", "parameters": {"binary_data_size": size}})
            )


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (b"", "The body is empty"),
        (b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":[1,NaN,3]}]}', "JSON has no NaN"),
        (b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":[ -Infinity,2,3]}]}', "JSON has no NaN"),
    ],
)
def test_what_is_often_sent_and_is_no_json_is_answered_by_what_to_send(text: bytes, advice: str) -> None:
    with pytest.raises(InvalidRequest, match=f"not an infer request: .*{advice}"):
        codec().decode(text)
    with pytest.raises(InvalidRequest) as caught:
        codec().decode(b'{"inputs":[],"id":"NaN"')
    assert advice not in str(caught.value)


def test_half_precision_has_no_json_form_in_either_direction() -> None:
    subject = Codec(MODELS["half"], LIMITS)
    with pytest.raises(InvalidRequest, match="no JSON form: request"):
        take(subject, *binary(np.zeros((1, 4), np.float16)))
    given_input = {"name": "x", "shape": [1, 4], "datatype": "FP16", "data": [0, 0, 0, 0]}
    with pytest.raises(InvalidRequest, match="no JSON form: send"):
        subject.decode(body(given_input, parameters={"binary_data_output": True}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.integers(0, 6))
def test_the_depth_counted_is_the_depth_there_is(value: object, most: int) -> None:
    text = json.dumps(value, ensure_ascii=False).encode()
    if depth(value) > most:
        with pytest.raises(InvalidRequest):
            check_depth(text, most)
    else:
        check_depth(text, most)


# Rows of sequences through the codec ----------------------------------------------------------------------------------


SPEC = ModelSpec(
    "m",
    "1",
    (TensorSpec("x", "int64", (6,), padding=0, limit=10, sizes=("length",)),),
    (TensorSpec("y", "int64", (8,), padding=0),),
    2,
    4,
    dims=(Dim("length", 1, 6),),
)


def both_ways(rows: Array) -> list[tuple[bytes, int | None]]:
    """Bodies with these tokens in JSON and in binary, each with the length of its JSON."""
    tensor = {"name": "x", "datatype": "INT64", "shape": list(rows.shape), "data": rows.flatten().tolist()}
    return [(body(tensor), None), (body({**tensor, "data": rows.tolist()}), None), binary(rows)]


@pytest.mark.parametrize("length", [1, 3, 6])
def test_rows_of_any_length_are_taken(length: int) -> None:
    rows = np.arange(2 * length).reshape(2, length) % 10
    for content, json_bytes in both_ways(rows):
        found = take(Codec(SPEC, LIMITS), content, json_bytes).rows["x"]
        np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("token", [-1, 10, 2**62])
def test_tokens_that_the_model_does_not_know_are_refused(token: int) -> None:
    for content, json_bytes in both_ways(np.array([[3, token]])):
        with pytest.raises(InvalidRequest, match="0 to 9"):
            take(Codec(SPEC, LIMITS), content, json_bytes)


# Rows of other sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 9])
def test_the_size_of_one_row_without_json_follows_from_its_bytes(length: int) -> None:
    row = np.arange(2 * length, dtype=np.float32).reshape(1, 2, length)
    taken = take(Codec(MODELS["sound"], LIMITS), row.tobytes(), 0)
    assert taken.call.dims == {"T": length}
    np.testing.assert_array_equal(taken.rows["x"], row)


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        ("sound", 12, "tensor 'x' has 3 values: a row has 2 for each T"),
        ("sound", 10, "the body has 10 bytes: one row of tensor 'x' has at most 72"),
        ("sound", 80, "T=10: it must be 1 to 9"),
        ("sound", 0, "T=0: it must be 1 to 9"),
        ("picture", 32, "may have any H and W: send nested lists, or its `shape`"),
    ],
)
def test_bytes_that_no_row_has_are_refused(model: str, size: int, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        take(Codec(MODELS[model], LIMITS), bytes(size), 0)


# Compressed -----------------------------------------------------------------------------------------------------------


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
LARGE = np.tile(np.arange(1024, dtype=np.float32), (1, 1024, 1))


def undone(parts: list[bytes], encoding: str = "gzip", limits: Limits | None = None) -> bytes:
    async def read() -> bytes:
        coming = iter([*parts, b""])

        async def receive() -> tuple[bytes, bool]:
            part = next(coming)
            return part, part != b""

        inflating = Inflater(receive, encoding.encode(), limits or Limits())
        found, more = bytearray(), True
        while more:
            piece, more = await inflating.receive()
            assert len(piece) <= 1 << 18
            found += piece
        return bytes(found)

    return asyncio.run(read())


@given(st.binary(max_size=2000), st.integers(1, 400), st.sampled_from(["gzip", "deflate"]))
def test_a_body_comes_out_as_it_was_however_it_was_cut(body: bytes, cut: int, encoding: str) -> None:
    sent = PACK[encoding](body)
    assert undone([sent[start : start + cut] for start in range(0, len(sent), cut)], encoding) == body


def test_a_body_may_grow_by_its_ratio_and_no_more() -> None:
    sent = gzip.compress(bytes(8 << 20))
    assert len(undone([sent], limits=Limits(ratio=2000))) == 8 << 20
    with pytest.raises(TooLarge, match="more than 200 times as large"):
        undone([sent])


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None),
        (b"", None),
        (b"gzip", b"gzip"),
        (b"GZIP", b"gzip"),
        (b"deflate", b"deflate"),
        (b"br, deflate;q=0.5, gzip ; q = 0.1", b"gzip"),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"gzip;q=0.000", None),
        (b"br", None),
        (b"identity", None),
        (b"gzip;q=x,,;", None),
        (b"gzip;level=9", None),
    ],
)
def test_the_reply_takes_an_encoding_that_the_client_takes(header: bytes | None, encoding: bytes | None) -> None:
    assert accepted(header) == encoding


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient_may_compress_both_ways(site: Site, encoding: str, binary: bool) -> None:
    model, x = ("large", LARGE) if binary else ("double", np.arange(1024, dtype=np.float32).reshape(64, 16))
    given_input = triton.InferInput("x", list(x.shape), "FP32")
    given_input.set_data_from_numpy(x, binary_data=binary)
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
        wanted = triton.InferRequestedOutput("y", binary_data=binary)
        both = {f"{way}_compression_algorithm": encoding for way in ("request", "response")}
        found = client.infer(model, [given_input], outputs=[wanted], **both).as_numpy("y")
    np.testing.assert_array_equal(found, x * 2)


def test_what_is_small_or_noise_goes_as_it_is(site: Site) -> None:
    small = site.post(DOUBLE, request(), {"Accept-Encoding": "gzip"})
    noise = np.random.default_rng(0).random((1, 1024, 1024), np.float32)
    tensor = {"name": "x", "shape": [1, 1024, 1024], "datatype": "FP32", "parameters": {"binary_data_size": 4 << 20}}
    head = json.dumps(request(tensor, parameters={"binary_data_output": True})).encode()
    headers = {"Accept-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    large = site.post("/v2/models/large/infer", head + noise.tobytes(), headers)
    for reply in (small, large):
        assert reply.status == 200
        assert "content-encoding" not in reply.headers
