"""What the door refuses over HTTP: broken bodies, headers, paths and methods, too much of anything, no HTTP at all."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from latebind.server.limits import Limits
from tests.server.bodies import DOUBLE, SCALAR, request, sixteen
from tests.server.conftest import Site, opened, read_response, scalar


@pytest.fixture(autouse=True)
def the_door_still_answers(site: Site) -> Iterator[None]:
    yield
    assert site.is_well()
    assert site.taken == 0


# What the door refuses ----------------------------------------------------------------------------------------------


BROKEN: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"x",
    "half of it": b'{"inputs": [',
    "an array": b"[]",
    "a number": b"1",
    "null": b"null",
    "bytes that are no text": b"\xff\xfe\x00",
    "text that is no UTF-8": b'{"inputs": [], "id": "\xff"}',
    "half of a surrogate": b'{"inputs": [], "id": "\\ud800"}',
    "NaN": json.dumps(request(sixteen(data=[float("nan")] * 16))).encode(),
    "infinity": json.dumps(request(sixteen(data=[float("inf")] * 16))).encode(),
    "number of 400 digits": json.dumps(request(sixteen(data=[10**400] * 16))).encode(),
    "shape of 5000 digits": b'{"inputs":[{"name":"x","datatype":"FP32","data":[],"shape":[%s]}]}' % (b"9" * 5000),
    "200 deep": b'{"inputs": ' + b"[" * 200 + b"]" * 200 + b"}",
    "100,000 deep": b'{"z": ' + b"[" * 100_000,
    "100,000 deep in data": b'{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":' + b"[" * 100_000,
    "no inputs": {"id": "a"},
    "inputs that are no list": {"inputs": {}},
    "missing input": {"inputs": []},
    "input without a name": request({"shape": [1, 16], "datatype": "FP32", "data": []}),
    "doubled input": request(sixteen(), sixteen()),
    "extra input": request(sixteen(), scalar(1.0)),
    "name that is no input": request(sixteen(name="\n" + "z" * 10_000)),
    "wrong shape": request(sixteen(shape=[16])),
    "overflowing shape": request(sixteen(shape=[2**32, 2**32])),
    "wrong datatype": request(sixteen(datatype="INT32")),
    "too many rows": request(sixteen(shape=[65, 16])),
    "no rows": request(sixteen(shape=[0, 16], data=[])),
    "binary without its header": request(sixteen(data=None, parameters={"binary_data_size": 64})),
    "unknown output": request(outputs=[{"name": "z"}]),
    "nested parameters": request(parameters={"timeout": {"a": 1}}),
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_body_is_a_clear_400(site: Site, body: object) -> None:
    reply = site.post(DOUBLE, body)
    assert reply.status == 400
    assert len(reply.error) < 500
    assert "\n" not in reply.error


@pytest.mark.parametrize("length", ["x", "", "-1", "1e3", "+5", "0x10", "5 5", "9" * 30, "1000000", "3", "٣"])
def test_a_broken_binary_header_is_a_clear_400(site: Site, length: str) -> None:
    body = json.dumps(request()).encode()
    raw = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nInference-Header-Content-Length: %s\r\n\r\n%s"
    reply = site.send(raw % (DOUBLE.encode(), len(body), length.encode(), body))
    assert reply.status == 400
    assert reply.error


def test_two_binary_headers_are_refused(site: Site) -> None:
    twice = b"Inference-Header-Content-Length: 8\r\n" * 2
    raw = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n%s\r\n12345678" % (SCALAR.encode(), twice)
    assert site.send(raw).status == 400


def test_a_raw_body_of_another_size_is_refused(site: Site) -> None:
    for body in (b"", b"1234567", b"123456789"):
        assert "one row of" in site.post(SCALAR, body, {"Inference-Header-Content-Length": "0"}).error
    assert "fits one input" in site.post("/v2/models/pair/infer", b"", {"Inference-Header-Content-Length": "0"}).error


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/",
        "/v2//models",
        "/v2/models/",
        "/v2/models/none",
        "/v2/models/none/ready",
        "/v2/models/../models",
        "/v2/models/..%2f..%2fetc%2fpasswd",
        "/v2/models/%2e%2e",
        "/v2/models/double%00",
        "/v2/models/double%0a",
        "/v2/models/double/",
        "/v2/models/double/versions/",
        "/v2/models/double/versions/one",
        "/v2/models/double/versions/01",
        "/v2/models/double/versions/-1",
        "/v2/models/double/versions/" + "9" * 5000,
        "/v2/models/%ff%fe",
        "/v2/models/double%25",
        "/v2/health",
        "//v2/models/none",
    ],
)
def test_paths_that_lead_nowhere_are_404(site: Site, path: str) -> None:
    reply = site.get(path)
    assert reply.status == 404
    assert reply.error


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DOUBLE),
        ("PUT", DOUBLE),
        ("DELETE", "/v2/models/double"),
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("GET", "/v2/repository/index"),
        ("OPTIONS", "/v2"),
    ],
)
def test_a_wrong_method_is_405(site: Site, method: str, path: str) -> None:
    assert site.call(method, path).status == 405
    assert "this path takes" in site.call(method, path).error


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_loading_and_unloading_are_off_unless_they_are_turned_on(site: Site, verb: str) -> None:
    refused = site.post(f"/v2/repository/models/double/{verb}", {})
    assert refused.status == 403
    assert "--manage" in refused.error


def test_a_broken_index_request_is_refused(site: Site) -> None:
    for body in (b"[]", b"{", b'{"ready": 1}', b"[" * 10_000):
        assert site.post("/v2/repository/index", body).status == 400
    assert site.post("/v2/repository/index", b" " * 20_000).status == 413


@pytest.mark.parametrize("encoding", ["zstd", "compress", "br", "identity, gzip", "gzip, gzip"])
def test_a_body_that_is_compressed_in_another_way_is_415(site: Site, encoding: str) -> None:
    reply = site.post(DOUBLE, request(), {"Content-Encoding": encoding})
    assert reply.status == 415
    assert "Content-Encoding" in reply.error
    assert site.post(DOUBLE, request(), {"Content-Encoding": "identity"}).status == 200


def test_a_body_that_is_compressed_twice_is_415(site: Site) -> None:
    twice = b"Content-Encoding: gzip\r\n" * 2
    assert (
        site.send(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n%s\r\nx" % (DOUBLE.encode(), twice)
        ).status
        == 415
    )


def test_a_large_body_is_refused_by_its_length_before_it_is_sent(site: Site) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    for size in ((64 << 20) + 1, 10**15):
        reply = site.send(head % (DOUBLE.encode(), size))
        assert reply.status == 413
        assert "more than 67108864 bytes" in reply.error


def test_a_large_chunked_body_is_refused_while_it_arrives() -> None:
    with opened(limits=Limits(body_bytes=100_000)) as site:
        endless = itertools.repeat(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        with site.connect() as connection:
            connection.sendall(
                b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % DOUBLE.encode()
            )
            for chunk in itertools.islice(endless, 3):
                connection.sendall(chunk)
            reply = read_response(connection)
        assert reply.status == 413
        assert reply.error
        assert site.is_well()


def test_too_many_chunks_are_refused() -> None:
    with opened(limits=Limits(chunks=100)) as site:
        raw = (
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % DOUBLE.encode()
            + b"1\r\n \r\n" * 101
        )
        reply = site.send(raw)
        assert reply.status == 413
        assert "chunks" in reply.error
        assert site.is_well()


READ = [DOUBLE, "/v2/models/echo/generate", "/v2/repository/index", "/v2/trace/setting"]
LENGTH = b"Content-Length: 10\r\n\r\n"
SLOW = {
    "nothing": LENGTH,
    "one byte": LENGTH + b"{",
    "no chunk": b"Transfer-Encoding: chunked\r\n\r\n",
    "one chunk": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "nothing in gzip": b"Content-Encoding: gzip\r\n" + LENGTH,
}


@pytest.mark.parametrize("rest", SLOW.values(), ids=SLOW.keys())
@pytest.mark.parametrize("path", READ)
def test_a_body_that_never_comes_is_given_up(hasty: Site, path: str, rest: bytes) -> None:
    reply = hasty.send(b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % path.encode() + rest)
    assert reply.status == 408
    assert "within 0.05 s" in reply.error
    assert reply.headers["connection"] == "close"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Site]:
    with opened(limits=Limits(body_seconds=0.05)) as found:
        yield found


HEAD = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
NO_HTTP: dict[str, tuple[bytes, int]] = {
    "one long header": (HEAD + b"A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "one header without an end": (HEAD + b"A: " + b"a" * 20_000, 431),
    "many headers": (HEAD + b"A: a\r\n" * 20_000 + b"\r\n", 431),
    "a long path": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
    "both lengths": (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "a length that overflows": (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "an unknown transfer encoding": (b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\n\r\n", 415),
    "a method that is none": (b"FETCH /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    "no path": (b"GET nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a path that is no ASCII": (b"GET /v2/\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a header with a zero byte": (HEAD + b"A: \0\r\n\r\n", 400),
}


@pytest.mark.parametrize(("raw", "status"), NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_or_too_much_of_it_is_refused_in_json(site: Site, raw: bytes, status: int) -> None:
    reply = site.send(raw)
    assert reply.status == status
    assert reply.error
    assert reply.headers["connection"] == "close"


def test_an_endless_trailer_ends_the_connection(site: Site) -> None:
    raw = b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "
    with site.connect() as connection, suppress(ConnectionError):
        connection.sendall(raw + b"a" * 1_000_000)
        assert read_response(connection).status == 431
