"""Bodies that are broken or lie: JSON, binary tensors and compressed ones."""

import gzip
import json
import struct
import zlib
from typing import Any

import pytest

from tests.server.bodies import DOUBLE, SCALAR, request, sixteen
from tests.server.conftest import Response, Site, scalar
from tests.server.hostile.wire import check_clean, send_raw

SIXTEEN = json.dumps(list(range(16))).encode()


def written(*, data: bytes = SIXTEEN, shape: bytes = b"[1,16]", name: bytes = b'"x"', more: bytes = b"") -> bytes:
    """An infer call of `double` with these texts in it, whatever they are."""
    one = b'{"name":%s,"shape":%s,"datatype":"FP32","data":%s}' % (name, shape, data)
    return b'{"inputs":[%s]%s}' % (one, more)


TEXTS = [b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82", b"\\ud800", b"\\udc00\\ud800", b"a\nb", b"a\0b", b"\\x41"]
VALUES = [b"NaN", b"-Infinity", b"0x10", b"01", b"+1", b"1.", b"1_0", b"1e", b"-"]
NO_JSON = [
    *[b"", b" " * 1000, b"\xef\xbb\xbf" + written(), written().decode().encode("utf-16"), b"+AHs-+ACI-inputs+ACI-:[]}"],
    *[written(more=b',"id":"%b"' % text) for text in TEXTS],
    *[written(data=b"[" + value + b",0" * 15 + b"]") for value in VALUES],
    *[written() + b"\0", written() + b"x", written() + written(), written()[:-1], written(more=b" /* */ ")],
    *[written(name=b"'x'"), written(data=b"[1,2,]"), b"[" * 1000 + b"]" * 1000, b'{"a":' * 100_000],
    written(more=b',"z":' + b"[" * 1000 + b"]" * 1000),
    written(more=b',"parameters":{"z":%s1%s}' % (b'{"a":' * 1000, b"}" * 1000)),
    written(data=b"[" * 200 + b"1" + b"]" * 200),
    written(shape=b"[" * 200 + b"1" + b"]" * 200),
    b'{"inputs":[' + b"[]," * 500_000 + b"[]]}",
]


@pytest.mark.parametrize("body", NO_JSON, ids=range(len(NO_JSON)))
def test_what_is_no_json_is_refused(site: Site, body: bytes) -> None:
    reply = site.post(DOUBLE, body)
    assert reply.status == 400
    check_clean(reply)


NUMBERS = [b"1e999", b"1e39", b"-1e39", b"9" * 100_000, b"0." + b"1" * 100_000 + b"e400", b"1e" + b"9" * 100_000]
NUMBERS += [b"true", b"null", b'"1"', b"{}", b"[1]"]


@pytest.mark.parametrize("number", NUMBERS, ids=[ascii(number[:12]) for number in NUMBERS])
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


# Binary tensors whose sizes overflow ----------------------------------------------------------------------------------


BLOB = bytes(64)


def call(
    site: Site, head: object, blob: bytes = BLOB, *, said: int | str | None = None, path: str = DOUBLE
) -> Response:
    """Post JSON with bytes behind it; the header says the JSON's length, or what is `said`."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    length = str(len(text) if said is None else said)
    return site.post(path, text + blob, {"Inference-Header-Content-Length": length})


def tensor(size: object = 64, **change: object) -> dict[str, Any]:
    return {
        "name": "x",
        "shape": [1, 16],
        "datatype": "FP32",
        "parameters": {"binary_data_size": size},
        **change,
    }


LENGTHS = ["-1", "0x40", "1e2", "", " ", "1 1", "1,1", "٣", "9" * 18, "9" * 400, "+10", "1_0", "none", "\x0b5"]


@pytest.mark.parametrize("said", LENGTHS, ids=lambda said: ascii(said)[:30])
def test_a_length_of_json_that_is_none_is_refused(site: Site, said: str) -> None:
    body = json.dumps(request(tensor())).encode() + BLOB
    line = f"POST {DOUBLE} HTTP/1.1\r\nHost: localhost\r\n"
    head = f"{line}Content-Length: {len(body)}\r\nInference-Header-Content-Length: {said}\r\n\r\n"
    reply, _ = send_raw(site, head.encode() + body)
    assert reply.status == 400
    check_clean(reply)


def test_a_boolean_that_is_neither_true_nor_false_is_refused(site: Site) -> None:
    given = {"name": "x", "shape": [1, 3], "datatype": "BOOL", "parameters": {"binary_data_size": 3}}
    assert call(site, request(given), b"\0\1\0", path="/v2/models/invert/infer").status == 200
    for byte in (b"\2", b"\x80", b"\xff"):
        check_clean(call(site, request(given), b"\0\1" + byte, path="/v2/models/invert/infer"))


def test_no_bytes_of_another_call_come_back(site: Site) -> None:
    secret, given = struct.pack("<16f", *[1234.5] * 16), request(tensor())
    assert call(site, given, secret).status == 200
    short = json.dumps(given).encode() + bytes(8)
    for raw in (short, short + bytes(20)):
        reply = site.post(DOUBLE, raw, {"Inference-Header-Content-Length": str(len(json.dumps(given)))})
        assert reply.status == 400
        assert b"2469" not in reply.body
        assert struct.pack("<f", 2469.0) not in reply.body


@pytest.mark.parametrize("length", [0, 1, 7, 9, 16, 1000])
def test_a_body_without_json_of_another_length_is_refused(site: Site, length: int) -> None:
    reply = call(site, b"", bytes(length), said=0, path=SCALAR)
    assert reply.status == 400
    check_clean(reply)


# Compressed bodies that are bombs -------------------------------------------------------------------------------------


PLAIN = json.dumps(request()).encode()
GZIP = gzip.compress(PLAIN)
DEFLATE = zlib.compress(PLAIN)
LARGE = bytes(100 << 20)


def raw_deflate(content: bytes) -> bytes:
    """Deflate without zlib's head, as some clients understand the word."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


def with_field(flag: int, field: bytes) -> bytes:
    """A gzip head that says of a field that it follows."""
    return GZIP[:3] + bytes([flag]) + GZIP[4:10] + field


BROKEN: dict[str, tuple[str, bytes]] = {
    "zeros without end, gzip": ("gzip", gzip.compress(LARGE)),
    "a bomb in a bomb": ("gzip", gzip.compress(gzip.compress(LARGE))),
    "spaces of JSON without end": ("gzip", gzip.compress(b'{"inputs":' + b" " * (70 << 20))),
    "a stream behind a stream": ("gzip", GZIP + GZIP),
    "something behind the stream": ("deflate", DEFLATE + b"x"),
    "half a stream": ("gzip", GZIP[: len(GZIP) // 2]),
    "a stream without its check": ("gzip", GZIP[:-8]),
    "a check that is wrong": ("gzip", GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:]),
    "a check of deflate that is wrong": ("deflate", DEFLATE[:-1] + b"\0"),
    "a name in the head without end": ("gzip", with_field(8, b"a" * 2_000_000)),
    "an extra field past the end": ("gzip", with_field(4, b"\xff\xff")),
    "flags that are reserved": ("gzip", with_field(0xE0, GZIP[10:])),
    "a dictionary that nobody has": ("deflate", b"\x78\xf9\0\0\0\1" + DEFLATE[2:]),
    "a distance before the beginning": ("deflate", b"\x78\x9c" + bytes.fromhex("4b04c20000")),
    "deflate for gzip": ("gzip", DEFLATE),
    "deflate without its head": ("deflate", raw_deflate(PLAIN)),
    "no stream at all": ("gzip", PLAIN),
    "nothing": ("gzip", b""),
    "gzip twice": ("gzip, gzip", gzip.compress(GZIP)),
    "an encoding that nobody knows": ("zstd", PLAIN),
}


@pytest.mark.parametrize(("encoding", "body"), BROKEN.values(), ids=BROKEN.keys())
def test_a_compressed_body_that_is_broken_or_a_bomb_is_refused(site: Site, encoding: str, body: bytes) -> None:
    reply = site.post(DOUBLE, body, {"Content-Encoding": encoding})
    assert reply.status in {400, 413, 415}
    check_clean(reply)


ACCEPTED = ["gzip;q=nan", "gzip;q=-1", "gzip;q=1e999", ";;;,,,", "*" * 5000, "gzip;q=" + "9" * 5000]


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda text: text[:20])
def test_an_accepted_encoding_that_is_none_harms_nobody(site: Site, accepted: str) -> None:
    reply = site.post(DOUBLE, request(), {"Accept-Encoding": accepted})
    assert reply.status == 200
