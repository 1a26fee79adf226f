"""The codec alone: what goes in comes out, and what does not fit is refused before an array is made."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.domain.errors import InvalidRequest
from latebind.server.calls import DATATYPES
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits
from latebind.server.rest.infer import Codec, check_depth
from tests.server.arithmetic import SPECS, one_to_one
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


@given(tensors(list(DATATYPES)), st.sampled_from((1 << 30, 1, 7, 64)))
def test_binary_tensors_come_through_unchanged_in_chunks_of_any_size(array: Array, chunk: int) -> None:
    call = take(
        codec(array.dtype.name, array.shape[1:]), *binary(array, parameters={"binary_data_output": True}), chunk=chunk
    )
    assert call.rows["x"].dtype == array.dtype
    np.testing.assert_array_equal(call.rows["x"], array)


@given(tensors([name for name in DATATYPES if name != "float16"]), st.booleans())
def test_json_tensors_come_through_unchanged_flat_or_nested(array: Array, nested: bool) -> None:
    data = array.tolist() if nested else array.reshape(-1).tolist()
    given_input = {"name": "x", "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name], "data": data}
    call = take(codec(array.dtype.name, array.shape[1:]), body(given_input))
    np.testing.assert_array_equal(call.rows["x"], array)


@given(tensors(list(DATATYPES)), st.booleans())
def test_an_encoded_answer_decodes_to_the_same_arrays(array: Array, as_binary: bool) -> None:
    if array.dtype == np.float16:
        as_binary = True
    subject = codec(array.dtype.name, array.shape[1:])
    call = take(subject, *binary(array, parameters={"binary_data_output": as_binary})).call
    text, blobs = subject.encode(Answer({"y": array}, (0,) * len(array)), call, {})
    reply = json.loads(text)
    (output,) = reply["outputs"]
    assert output["shape"] == list(array.shape)
    if as_binary:
        found = np.frombuffer(b"".join(blobs), array.dtype).reshape(array.shape)
    else:
        assert not blobs
        found = np.array(output["data"], array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(found, array)


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
    with pytest.raises(InvalidRequest, match="no JSON form: ask"):
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
