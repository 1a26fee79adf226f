"""Heads of requests as RFC 9110 and RFC 9112 have them: HEAD, whole URLs for targets, trailers, the last chunk."""

import json

import pytest

from latebind.server.limits import Limits
from tests.server.bodies import SCALAR, request
from tests.server.conftest import Site, scalar
from tests.server.hostile.wire import send_raw

BODY = json.dumps(request(scalar(21.0))).encode()
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % SCALAR.encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def in_chunks(count: int) -> bytes:
    """A chunked body of `count` chunks of one byte."""
    return b"".join([b"1\r\n%c\r\n" % byte for byte in BODY.ljust(count)]) + b"0\r\n\r\n"


# HEAD ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/models", "/v2/models/double", "/v2/openapi.json", "/metrics", "/nowhere"]
)
def test_head_is_answered_as_get_is_but_without_a_body(site: Site, path: str) -> None:
    got, told = site.get(path), site.call("HEAD", path)
    assert (told.status, told.body) == (got.status, b"")
    assert told.headers.keys() == got.headers.keys()
    if path != "/metrics":  # figures change from call to call
        assert told.headers["content-length"] == got.headers["content-length"]


def test_a_path_that_takes_no_get_takes_no_head_and_says_what_it_takes(site: Site) -> None:
    assert site.call("HEAD", SCALAR).status == 405
    assert site.call("HEAD", SCALAR).headers["allow"] == "POST"
    assert site.call("PUT", "/v2").headers["allow"] == "GET, HEAD"
    assert site.call("OPTIONS", "/v2/logging").headers["allow"] == "GET, HEAD, POST"


# Targets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["http://localhost/v2", "HTTP://LOCALHOST:80/v2?a=b", "https://127.0.0.1/v2"])
def test_a_whole_url_is_as_good_a_target_as_its_path(site: Site, target: str) -> None:
    reply, _ = send_raw(site, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert reply.json()["name"] == "latebind"


# Headers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trailer", [b"Content-Encoding: zstd", b"Host: evil.example", b"Inference-Header-Content-Length: 0"]
)
def test_a_trailer_changes_nothing_that_the_head_has_said(site: Site, trailer: bytes) -> None:
    reply, _ = send_raw(site, CHUNKED + in_chunks(0)[:-2] + trailer + b"\r\n\r\n")
    assert reply.json()["outputs"][0]["data"] == [42.0]


# Chunks -------------------------------------------------------------------------------------------------------------


def test_a_body_may_have_as_many_chunks_as_the_limit_says_and_no_more(site: Site) -> None:
    reply, _ = send_raw(site, CHUNKED + in_chunks(Limits().chunks))
    assert reply.json()["outputs"][0]["data"] == [42.0]
    reply, _ = send_raw(site, CHUNKED + in_chunks(Limits().chunks + 1))
    assert reply.status == 413
    assert "send fewer, larger ones" in reply.error
