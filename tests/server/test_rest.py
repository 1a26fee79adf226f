"""The protocol over HTTP as a plain client sees it: what is answered, what is refused, and that the door stands."""

import itertools
import json
import logging
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from latebind import __version__
from latebind.domain.config import DoorConfig
from latebind.server.limits import Limits

from .conftest import Site, opened, read_response, scalar

DOUBLE = "/v2/models/double/infer"
SCALAR = "/v2/models/scalar/infer"


def sixteen(**change: object) -> dict[str, Any]:
    return {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": list(range(16)), **change}


def request(*inputs: dict[str, Any], **rest: object) -> dict[str, Any]:
    return {"inputs": list(inputs) or [sixteen()], **rest}


@pytest.fixture(autouse=True)
def the_door_still_answers(site: Site) -> Iterator[None]:
    yield
    assert site.is_well()


# What is answered ---------------------------------------------------------------------------------------------------


def test_the_server_says_what_it_is_and_only_what_it_can(site: Site) -> None:
    expected = {"name": "latebind", "version": __version__, "extensions": ["binary_tensor_data", "parameters"]}
    assert site.get("/v2").json() == expected


def test_health_is_a_status_with_an_empty_body() -> None:
    with opened() as site:
        for path in (
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/double/ready",
            "/v2/models/double/versions/1/ready",
        ):
            assert (site.get(path).status, site.get(path).body) == (200, b"")
        site.gateway.unready.add("double")
        site.gateway.is_live = False
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/double/ready"):
            assert (site.get(path).status, site.get(path).body) == (400, b"")
        assert site.get("/v2/models/half/ready").status == 200


def test_models_are_described_with_or_without_their_version(site: Site) -> None:
    described = site.get("/v2/models/pair").json()
    assert described["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2, 2]},
        {"name": "b", "datatype": "INT64", "shape": [-1, 3]},
    ]
    assert site.get("/v2/models/pair/versions/1").json() == described
    assert site.get("/v2/models/%70air").json() == described


def test_models_are_listed(site: Site) -> None:
    names = site.get("/v2/models").json()["models"]
    assert names == sorted(names)
    for body in (b"", b"{}", b'{"ready": true}'):
        index = site.post("/v2/repository/index", body).json()
        assert [entry["name"] for entry in index] == names
        assert index[0] == {"name": names[0], "version": "1", "state": "READY", "reason": ""}


def test_json_in_gives_json_out_with_the_id_and_the_stage_it_left_at(site: Site) -> None:
    reply = site.post(DOUBLE, request(id="abc"))
    assert reply.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in reply.headers
    assert reply.json() == {
        "model_name": "double",
        "model_version": "1",
        "id": "abc",
        "parameters": {"left_at": 2, "stages": 3},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 16], "data": [2.0 * i for i in range(16)]}],
    }


def test_every_row_of_a_batch_has_its_own_stage(site: Site) -> None:
    given = {"name": "x", "shape": [3], "datatype": "FP64", "data": [-1, 1, -2]}
    reply = site.post(SCALAR, request(given)).json()
    assert reply["parameters"] == {"left_at": [0, 2, 0], "stages": 3}
    assert reply["outputs"][0]["data"] == [-2, 2, -4]


def test_the_operator_can_hide_the_stage() -> None:
    with opened(DoorConfig(port=0, show_exit=False)) as site:
        assert "parameters" not in site.post(DOUBLE, request()).json()


def test_binary_out_carries_its_header_and_its_bytes(site: Site) -> None:
    reply = site.post(DOUBLE, request(parameters={"binary_data_output": True}))
    assert reply.headers["content-type"] == "application/octet-stream"
    size = int(reply.headers["inference-header-content-length"])
    (output,) = json.loads(reply.body[:size])["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    assert struct.unpack("<16f", reply.body[size:]) == tuple(2.0 * i for i in range(16))


def test_a_raw_body_needs_no_json_at_all(site: Site) -> None:
    reply = site.post(SCALAR, struct.pack("<d", 1.5), {"Inference-Header-Content-Length": "0"})
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == struct.pack("<d", 3.0)


def test_a_version_in_the_path_must_be_the_one_that_is_served(site: Site) -> None:
    assert site.post("/v2/models/double/versions/1/infer", request()).status == 200
    refused = site.post("/v2/models/double/versions/2/infer", request())
    assert refused.status == 404
    assert "has no version '2': it has 1" in refused.error


def test_the_content_type_does_not_matter(site: Site) -> None:
    for kind in ("application/json", "text/plain", "application/octet-stream", "nonsense"):
        assert site.post(DOUBLE, request(), {"Content-Type": kind}).status == 200


def test_a_chunked_body_is_read_to_its_end(site: Site) -> None:
    body = json.dumps(request()).encode()
    parts = (body[i : i + 7] for i in range(0, len(body), 7))
    assert site.call("POST", DOUBLE, parts).status == 200  # http.client chunks what has no length


def test_pipelined_requests_are_answered_in_their_order(site: Site) -> None:
    calls = []
    for i in range(20):
        body = json.dumps(request(scalar(i), id=str(i))).encode()
        calls.append(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (SCALAR.encode(), len(body), body))
    with site.connect() as connection:
        connection.sendall(b"".join(calls))
        received = b""
        while received.count(b"HTTP/1.1 200") < 20 or not received.endswith(b"}"):
            received += connection.recv(65536)
    assert received.index(b'"id":"0"') < received.index(b'"id":"7"') < received.index(b'"id":"19"')


def test_the_timeout_is_in_microseconds_and_the_default_is_the_models() -> None:
    with opened(DoorConfig(port=0, deadline=2.0), Limits(deadline=100.0), {"half": 7.0}) as site:
        half = {"name": "x", "shape": [1, 4], "datatype": "FP16", "parameters": {"binary_data_size": 8}}
        head = json.dumps(request(half, parameters={"binary_data_output": True})).encode()
        cases: list[tuple[float, str, Any]] = [
            (0.25, DOUBLE, request(parameters={"timeout": 250_000})),
            (2.0, DOUBLE, request(parameters={"timeout": 0})),
            (100.0, DOUBLE, request(parameters={"timeout": 10**40})),
            (7.0, "/v2/models/half/infer", head + bytes(8)),
        ]
        for seconds, path, body in cases:
            before = time.monotonic()
            headers = {"Inference-Header-Content-Length": str(len(head))} if isinstance(body, bytes) else {}
            assert site.post(path, body, headers).status == 200
            assert before + seconds <= site.gateway.deadlines[-1] <= time.monotonic() + seconds


# What the gateway refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "status"), [("full", 503), ("gone", 503), ("late", 504)])
def test_refusals_have_their_status_and_say_when_to_come_back(site: Site, model: str, status: int) -> None:
    given = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    reply = site.post(f"/v2/models/{model}/infer", request(given))
    assert reply.status == status
    assert list(reply.json()) == ["error"]
    assert ("retry-after" in reply.headers) == (status == 503)


@pytest.mark.parametrize("model", ["failing", "crashing"])
def test_a_failure_tells_an_id_and_the_log_tells_the_rest(
    site: Site, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    with caplog.at_level(logging.ERROR):
        reply = site.post(f"/v2/models/{model}/infer", request(given))
    assert reply.status == 500
    text = reply.json()["error"]
    assert text.startswith("internal error, request id ")
    assert "/srv" not in text
    assert text.rpartition(" ")[2] in caplog.text
    assert "/srv" in caplog.text


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
    raw = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\nInference-Header-Content-Length: %s\r\n\r\n%s"
    reply = site.send(raw % (DOUBLE.encode(), len(body), length.encode(), body))
    assert reply.status == 400
    assert reply.error


def test_two_binary_headers_are_refused(site: Site) -> None:
    twice = b"Inference-Header-Content-Length: 8\r\n" * 2
    raw = b"POST %s HTTP/1.1\r\nContent-Length: 8\r\n%s\r\n12345678" % (SCALAR.encode(), twice)
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
        "/v2/models/double/config",
        "/v2/models/%ff%fe",
        "/v2/models/double%25",
        "/v2/health",
        "/v2/logging",
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


def test_head_is_405_without_a_body(site: Site) -> None:
    assert (site.call("HEAD", "/v2").status, site.call("HEAD", "/v2").body) == (405, b"")


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_loading_and_unloading_are_not_offered(site: Site, verb: str) -> None:
    assert site.post(f"/v2/repository/models/double/{verb}", {}).status == 404


def test_a_broken_index_request_is_refused(site: Site) -> None:
    for body in (b"[]", b"{", b'{"ready": 1}', b"[" * 10_000):
        assert site.post("/v2/repository/index", body).status == 400
    assert site.post("/v2/repository/index", b" " * 20_000).status == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_a_compressed_body_is_415(site: Site, encoding: str) -> None:
    reply = site.post(DOUBLE, request(), {"Content-Encoding": encoding})
    assert reply.status == 415
    assert "Content-Encoding" in reply.error
    assert site.post(DOUBLE, request(), {"Content-Encoding": "identity"}).status == 200


def test_a_large_body_is_refused_by_its_length_before_it_is_sent(site: Site) -> None:
    head = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    for size in ((64 << 20) + 1, 10**15):
        reply = site.send(head % (DOUBLE.encode(), size))
        assert reply.status == 413
        assert "more than 67108864 bytes" in reply.error


def test_a_large_chunked_body_is_refused_while_it_arrives() -> None:
    with opened(limits=Limits(body_bytes=100_000)) as site:
        endless = itertools.repeat(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        with site.connect() as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % DOUBLE.encode())
            for chunk in itertools.islice(endless, 3):
                connection.sendall(chunk)
            reply = read_response(connection)
        assert reply.status == 413
        assert reply.error
        assert site.is_well()


def test_too_many_chunks_are_refused() -> None:
    with opened(limits=Limits(chunks=100)) as site:
        raw = b"POST %s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % DOUBLE.encode() + b"1\r\n \r\n" * 101
        reply = site.send(raw)
        assert reply.status == 413
        assert "chunks" in reply.error
        assert site.is_well()


def test_a_body_that_never_comes_is_given_up() -> None:
    with opened(limits=Limits(body_seconds=0.05)) as site:
        reply = site.send(b"POST %s HTTP/1.1\r\nContent-Length: 10\r\n\r\n{" % DOUBLE.encode())
        assert reply.status == 408
        assert reply.error


HEAD = b"GET /v2 HTTP/1.1\r\n"
NO_HTTP: dict[str, tuple[bytes, int]] = {
    "one long header": (HEAD + b"A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "one header without an end": (HEAD + b"A: " + b"a" * 20_000, 431),
    "many headers": (HEAD + b"A: a\r\n" * 20_000 + b"\r\n", 431),
    "a long path": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
    "both lengths": (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "a negative length": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "a length that overflows": (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "an unknown transfer encoding": (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n", 400),
    "a method that is none": (b"FETCH /v2 HTTP/1.1\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    "no path": (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
    "a path that is no ASCII": (b"GET /v2/\xc3\xa9 HTTP/1.1\r\n\r\n", 400),
    "a header with a zero byte": (HEAD + b"A: \0\r\n\r\n", 400),
}


@pytest.mark.parametrize(("raw", "status"), NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_or_too_much_of_it_is_refused_in_json(site: Site, raw: bytes, status: int) -> None:
    reply = site.send(raw)
    assert reply.status == status
    assert reply.error
    assert reply.headers["connection"] == "close"


def test_an_endless_trailer_ends_the_connection(site: Site) -> None:
    raw = b"POST /v2/repository/index HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "
    with site.connect() as connection, suppress(ConnectionError):
        connection.sendall(raw + b"a" * 1_000_000)
        assert read_response(connection).status == 431
