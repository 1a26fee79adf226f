"""JSON that is broken, of the wrong kind or far too much, in every place of an infer call."""

import json
from typing import Any

import pytest

from tests.server.bodies import DOUBLE, request, sixteen
from tests.server.conftest import Site, scalar
from tests.server.hostile.wire import check_clean

SIXTEEN = json.dumps(list(range(16))).encode()


def written(*, data: bytes = SIXTEEN, shape: bytes = b"[1,16]", name: bytes = b'"x"', more: bytes = b"") -> bytes:
    """An infer call of `double` with these texts in it, whatever they are."""
    one = b'{"name":%s,"shape":%s,"datatype":"FP32","data":%s}' % (name, shape, data)
    return b'{"inputs":[%s]%s}' % (one, more)


NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b" " * 1000,
    "a mark of byte order": b"\xef\xbb\xbf" + written(),
    "UTF-16": written().decode().encode("utf-16"),
    "UTF-7": b"+AHs-+ACI-inputs+ACI-:[]}",
    "long UTF-8": written(more=b',"id":"\xc0\xaf"'),
    "UTF-8 of a surrogate": written(more=b',"id":"\xed\xa0\x80"'),
    "UTF-8 that is cut off": written(more=b',"id":"\xe2\x82"'),
    "half a surrogate, escaped": written(more=b',"id":"\\ud800"'),
    "the wrong half of a surrogate": written(more=b',"id":"\\udc00\\ud800"'),
    "a line feed in a string": written(more=b',"id":"a\nb"'),
    "a zero byte in a string": written(more=b',"id":"a\0b"'),
    "a zero byte behind": written() + b"\0",
    "an escape that is none": written(more=b',"id":"\\x41"'),
    "a string in single quotes": written(name=b"'x'"),
    "a comma at the end": written(data=b"[1,2,]"),
    "a comment": written(more=b" /* */ "),
    "two objects": written() + written(),
    "an object that is not closed": written()[:-1],
    "something behind": written() + b"x",
    "NaN": written(data=b"[NaN" + b",0" * 15 + b"]"),
    "infinity": written(data=b"[-Infinity" + b",0" * 15 + b"]"),
    "a number in hexadecimal": written(data=b"[0x10" + b",0" * 15 + b"]"),
    "a number with a leading zero": written(data=b"[01" + b",0" * 15 + b"]"),
    "a number with a plus": written(data=b"[+1" + b",0" * 15 + b"]"),
    "a number without its fraction": written(data=b"[1." + b",0" * 15 + b"]"),
    "a number of underscores": written(data=b"[1_0" + b",0" * 15 + b"]"),
    "a number that stops at its exponent": written(data=b"[1e" + b",0" * 15 + b"]"),
    "a mere minus": written(data=b"[-" + b",0" * 15 + b"]"),
    "1000 deep": b"[" * 1000 + b"]" * 1000,
    "100,000 deep, not closed": b'{"a":' * 100_000,
    "1000 deep in a field that nobody knows": written(more=b',"z":' + b"[" * 1000 + b"]" * 1000),
    "1000 deep in a parameter": written(more=b',"parameters":{"z":%s1%s}' % (b'{"a":' * 1000, b"}" * 1000)),
    "200 deep in data": written(data=b"[" * 200 + b"1" + b"]" * 200),
    "200 deep in a shape": written(shape=b"[" * 200 + b"1" + b"]" * 200),
    "a million brackets in turn": b'{"inputs":[' + b"[]," * 500_000 + b"[]]}",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_is_refused(site: Site, body: bytes) -> None:
    reply = site.post(DOUBLE, body)
    assert reply.status == 400
    check_clean(reply)


NUMBERS: dict[str, bytes] = {
    "a number past double precision": b"1e999",
    "a number past single precision": b"1e39",
    "a negative one past single precision": b"-1e39",
    "a number of 100,000 digits": b"9" * 100_000,
    "a fraction of 100,000 digits and an exponent past all": b"0." + b"1" * 100_000 + b"e400",
    "an exponent of 100,000 digits": b"1e" + b"9" * 100_000,
    "true": b"true",
    "null": b"null",
    "a string": b'"1"',
    "an object": b"{}",
    "a list in a flat list": b"[1]",
}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS.keys())
def test_a_value_that_is_no_number_of_the_tensor_is_refused(site: Site, number: bytes) -> None:
    reply = site.post(DOUBLE, written(data=b"[0" + b",0" * 14 + b"," + number + b"]"))
    assert reply.status == 400
    check_clean(reply)


FIELDS: dict[str, Any] = {
    "inputs": [None, {}, "x", 1, [None], [[]], ["x"], [1]],
    "id": [1, [], {}, True, 1.5],
    "parameters": [[], "x", 1, True],
    "outputs": ["y", {}, 1, [None], ["y"], [[]], [{"name": 1}], [{}], [{"name": "y", "parameters": []}]],
}
PARAMETERS: dict[str, Any] = {
    "timeout": [-1, -(2**63), "1000", 1.5, None, [], {}],
    "priority": [-1, 256, 2**64, "1", None, [], 0.5],
    "binary_data_output": [1, "true", None, []],
    "sequence_id": [1, -1, 2**64, "a", [], {}],
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_wrong_kind_is_refused(site: Site, field: str) -> None:
    for value in FIELDS[field]:
        reply = site.post(DOUBLE, {**request(), field: value})
        assert reply.status == 400, value
        check_clean(reply)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_a_parameter_of_the_wrong_kind_is_refused(site: Site, parameter: str) -> None:
    for value in PARAMETERS[parameter]:
        reply = site.post(DOUBLE, request(parameters={parameter: value}))
        assert reply.status == 400, str(value)[:80]
        check_clean(reply)


TOO_MANY: dict[str, dict[str, Any]] = {
    "10,000 inputs of one name": request(*[sixteen()] * 10_000),
    "10,000 inputs of other names": request(*({"name": str(i), "shape": [], "datatype": ""} for i in range(10_000))),
    "10,000 outputs": request(outputs=[{"name": "y"}] * 10_000),
    "an input that the model does not have": request(sixteen(), scalar(1.0)),
    "an output that the model does not have": request(outputs=[{"name": "x"}]),
    "an input name of a megabyte": request(sixteen(name="a" * 1_000_000)),
    "an output name of a megabyte": request(outputs=[{"name": "\u202e" * 300_000}]),
    "an input name with a path": request(sixteen(name="../../../x")),
    "an input name with lines": request(sixteen(name="x\r\n\r\nHTTP/1.1 200 OK\r\n")),
    "an id of a megabyte": request(id="a" * 1_000_000),
    "a million values for sixteen": request(sixteen(data=[0] * 1_000_000)),
}


@pytest.mark.parametrize("body", TOO_MANY.values(), ids=TOO_MANY.keys())
def test_too_many_and_too_long_is_refused(site: Site, body: dict[str, Any]) -> None:
    reply = site.post(DOUBLE, body)
    assert reply.status in {400, 413}
    check_clean(reply)
