"""The codec alone: what goes in comes out, and what does not fit is refused before an array is made."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits
from latebind.server.rest.codec import Codec, check_depth
from latebind.server.tensors import DATATYPES, Tensor
from tests.server.arithmetic import SPECS, one_to_one
from tests.server.taking import take

LIMITS = Limits()
MODELS = {spec.name: spec for spec in SPECS}
PLAIN = {"name": "x", "shape": [1, 3], "datatype": "INT16", "data": [1, 2, 3]}


def codec(dtype: str = "int16", shape: tuple[int, ...] = (3,)) -> Codec:
    return Codec(one_to_one("m", dtype, *shape), LIMITS)


def nothing_told(spec: ModelSpec, answer: Answer) -> dict[str, object]:
    return {}


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


INTEGERS = st.integers(-40_000, 40_000)
NUMBERS: st.SearchStrategy[list[Any]] = st.lists(INTEGERS, min_size=3, max_size=3) | st.lists(
    INTEGERS | st.sampled_from([1.5, "1", None, [1], {}]), max_size=4
)
TEXTS = st.sampled_from(
    [
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":%b}]}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data": %b}],"parameters":{"timeout":7}}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":[%b]}]}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":%b}],"id":"7"}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":%b,"data":[1,2,3]}]}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":%b,"d\\u0061ta":[1,2,3]}]}',
        b'{"parameters":{"data":%b},"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","d\\u0061ta":[1,2,3]}]}',
        b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"INT16","data":%b}]',
    ]
)


@given(TEXTS, st.just([1, 2, 3]) | NUMBERS, NUMBERS)
def test_what_a_text_means_does_not_depend_on_what_came_before(text: bytes, first: list[Any], then: list[Any]) -> None:
    subject = codec()
    before, content = (text % json.dumps(numbers, separators=(",", ":")).encode() for numbers in (first, then))
    attempt(subject, before)
    assert attempt(subject, content) == attempt(codec(), content)


def attempt(subject: Codec, content: bytes) -> object:
    """What comes of a call, to compare: its rows and what it says, or why it is refused."""
    try:
        taken = take(subject, content)
    except InvalidRequest as error:
        return str(error)
    call = taken.call
    return taken.rows["x"].tolist(), call.rows, call.size, call.id, call.timeout, call.priority, len(call.wanted)


@given(tensors(list(DATATYPES)), st.booleans())
def test_an_encoded_answer_decodes_to_the_same_arrays(array: Array, as_binary: bool) -> None:
    if array.dtype == np.float16:
        as_binary = True
    subject = codec(array.dtype.name, array.shape[1:])
    call = take(subject, *binary(array, parameters={"binary_data_output": as_binary})).call
    encoded = subject.encode(Answer({"y": array}, (0,) * len(array)), call, nothing_told)
    reply = json.loads(encoded.body[: encoded.json_bytes])
    (output,) = reply["outputs"]
    assert output["shape"] == list(array.shape)
    if as_binary:
        assert encoded.json_bytes is not None
        found = np.frombuffer(encoded.body[encoded.json_bytes :], array.dtype).reshape(array.shape)
    else:
        assert encoded.json_bytes is None
        found = np.array(output["data"], array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(found, array)


def test_not_a_number_in_an_answer_is_null_in_json() -> None:
    subject = codec("float32", (2,))
    call = subject.decode(body({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]}))
    encoded = subject.encode(Answer({"y": np.array([[np.nan, 1.5]], np.float32)}, (0,)), call, nothing_told)
    assert json.loads(encoded.body)["outputs"][0]["data"] == [None, 1.5]


def test_not_a_number_in_binary_is_data() -> None:
    array = np.array([[np.nan, np.inf]], np.float32)
    np.testing.assert_array_equal(take(codec("float32", (2,)), *binary(array)).rows["x"], array)


def test_a_body_without_json_is_one_row_of_the_only_input_and_wants_binary() -> None:
    taken = take(codec(), np.array([1, 2, 3], np.int16).tobytes(), 0)
    np.testing.assert_array_equal(taken.rows["x"], [[1, 2, 3]])
    assert [output.binary for output in taken.call.wanted] == [True]


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


def test_unknown_parameters_and_fields_are_let_through() -> None:
    codec().decode(body({**PLAIN, "parameters": {"colour": "red"}}, parameters={"priority": 3, "mine": [1]}, more={}))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown datatype", {"datatype": "BF16"}, "not served"),
    ("bytes", {"datatype": "BYTES", "data": ["a", "b", "c"]}, "not served"),
    ("other datatype", {"datatype": "INT32"}, "must be INT16"),
    ("no batch dimension", {"shape": [3]}, "-1 being the batch"),
    ("no shape", {"shape": []}, "-1 being the batch"),
    ("other shape", {"shape": [1, 4]}, "-1 being the batch"),
    ("overflowing shape", {"shape": [1, 2**63]}, "-1 being the batch"),
    ("overflowing batch", {"shape": [2**64, 3]}, "send 1 to 64"),
    ("negative batch", {"shape": [-1, 3]}, "send 1 to 64"),
    ("no rows", {"shape": [0, 3], "data": []}, "send 1 to 64"),
    ("too many rows", {"shape": [65, 3], "data": [0] * 195}, "send 1 to 64"),
    ("fractions in the shape", {"shape": [1.0, 3]}, "Expected `int`"),
    ("other name", {"name": "z"}, "has no input 'z'"),
    ("too few values", {"data": [1, 2]}, "data has shape [2]"),
    ("too many values", {"data": [1, 2, 3, 4]}, "4 values"),
    ("no values", {"data": []}, "data has shape [0]"),
    ("strings", {"data": ["1", "2", "3"]}, "Expected `int`"),
    ("fractions", {"data": [1, 2, 2.5]}, "Expected `int`"),
    ("truths for numbers", {"data": [1, 2, True]}, "Expected `int`"),
    ("null", {"data": [1, 2, None]}, "Expected `int`"),
    ("past the datatype", {"data": [1, 2, 40000]}, "not INT16"),
    ("far past the datatype", {"data": [1, 2, 10**30]}, "not INT16"),
    ("an object", {"data": {"a": 1}}, "Expected `array`"),
    ("ragged", {"data": [[1, 2], [3]]}, "not INT16"),
    ("nested otherwise", {"data": [[1], [2], [3]]}, "data has shape [3, 1]"),
    ("nested too deep", {"data": [[[1, 2, 3]]]}, "Expected `int`"),
    ("data and shared memory", {"parameters": {"shared_memory_region": "r"}}, "either data"),
    (
        "shared memory that is not named",
        {"parameters": {"shared_memory_byte_size": 6}},
        "without its shared_memory_region",
    ),
    ("data and a size", {"parameters": {"binary_data_size": 6}}, "either data"),
    ("a size that is text", {"parameters": {"binary_data_size": "6"}}, "Expected `int"),
]


@pytest.mark.parametrize(("change", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_an_input_that_does_not_fit_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec().decode(body({**PLAIN, **change}))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
        ({"outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "ask for 1 to 1024"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 2**64}}]}, "ask for 1 to 1024"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_offset": 8}}]}, "without its shared_memory_region"),
        ({"parameters": {"timeout": -1}}, "timeout"),
        ({"parameters": {"timeout": 0.5}}, "Expected `int`"),
        ({"parameters": {"sequence_id": 7, "sequence_start": True}}, "sequences"),
        ({"id": 5}, "Expected `str | null`"),
    ],
)
def test_a_request_that_asks_for_what_is_not_there_is_refused(rest: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec().decode(body(PLAIN, **rest))
    assert reason in str(caught.value)


def test_missing_and_doubled_inputs_and_batches_that_differ_are_refused() -> None:
    subject = Codec(MODELS["pair"], LIMITS)
    a = {"name": "a", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
    b = {"name": "b", "shape": [2, 3], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 6]}
    for inputs, reason in (
        ([a], "'b' is missing"),
        ([a, a], "given twice"),
        ([a, b], "the one before"),
        ([], "'a' is"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            subject.decode(body(*inputs))


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
        with pytest.raises(InvalidRequest, match="ask for 6"):
            codec().decode(body({**binary_input(), "parameters": {"binary_data_size": size}}))


def binary_input() -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name != "data"}


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


@pytest.mark.parametrize("value", [40_000, -40_000, 10**30])
def test_a_number_that_the_datatype_has_not_is_answered_by_those_that_it_has(value: int) -> None:
    with pytest.raises(InvalidRequest, match="'x' has data that is not INT16: values must be -32768 to 32767"):
        codec().decode(body({"name": "x", "shape": [1, 3], "datatype": "INT16", "data": [1, value, 3]}))


def test_one_row_without_its_batch_is_answered_by_the_shape_with_it() -> None:
    with pytest.raises(
        InvalidRequest, match=r"shape \[3\]: it must be \[-1, 3\], -1 being the batch: one row is \[1, 3\]"
    ):
        codec().decode(body({"name": "x", "shape": [3], "datatype": "INT16", "data": [1, 2, 3]}))


def test_half_precision_has_no_json_form_in_either_direction() -> None:
    subject = Codec(MODELS["half"], LIMITS)
    with pytest.raises(InvalidRequest, match="no JSON form: ask"):
        take(subject, *binary(np.zeros((1, 4), np.float16)))
    given_input = {"name": "x", "shape": [1, 4], "datatype": "FP16", "data": [0, 0, 0, 0]}
    with pytest.raises(InvalidRequest, match="no JSON form: send"):
        subject.decode(body(given_input, parameters={"binary_data_output": True}))


def test_numbers_past_single_precision_are_refused_and_not_made_infinite() -> None:
    for number in (b"1e39", b"-1e300", b"9" * 50):
        text = body({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": ["N"]}).replace(b'"N"', number)
        with pytest.raises(InvalidRequest, match="too large for FP32"):
            codec("float32", (1,)).decode(text)


def test_a_truth_in_binary_is_0_or_1() -> None:
    content, json_bytes = binary(np.array([[True, False, True]]))
    with pytest.raises(InvalidRequest, match="BOOL knows 0 and 1"):
        take(Codec(MODELS["invert"], LIMITS), content[:-1] + b"\2", json_bytes)


def test_a_tensor_without_values_has_none_that_the_model_does_not_take() -> None:
    limited = Tensor(TensorSpec("x", "int64", (0,), limit=3))
    limited.check((np.zeros((1, 0), np.int64),))
    assert limited.from_json(b"[]", shape=(1, 0)).shape == (1, 0)
    with pytest.raises(InvalidRequest, match="0 to 2"):
        Tensor(TensorSpec("x", "int64", (2,), limit=3)).from_json(b"[-1, 2]", shape=(1, 2))


def test_json_past_its_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match="binary data"):
        Codec(MODELS["double"], Limits(json_bytes=100)).decode(b" " * 101)


@pytest.mark.parametrize("text", [b"[" * 101, b"[1," * 101, b'{"a":' * 101, b'"[" , "]", "\\\\" ,' + b"[" * 101])
def test_json_nested_too_deep_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="nested more than 100 deep"):
        check_depth(text, 100)


@pytest.mark.parametrize("text", [b"[" * 100, b"[]" * 1000, b'"' + b"[" * 500 + b'"', rb'["\"' + b"[" * 200 + b'"]'])
def test_many_brackets_that_are_not_deep_are_no_reason_to_refuse(text: bytes) -> None:
    check_depth(text, 100)


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


def test_the_metadata_say_what_the_protocol_wants() -> None:
    spec = ModelSpec("m", "3", (TensorSpec("x", "uint8", (2, 4)),), (TensorSpec("y", "float32", ()),), 1, 1)
    assert Codec(spec, LIMITS).metadata() == {
        "name": "m",
        "versions": ["3"],
        "platform": "latebind",
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [-1, 2, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
