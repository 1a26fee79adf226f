"""What the frontend refuses over HTTP: broken bodies, headers, paths, methods, too much of anything, no HTTP at all."""

import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest

from latebind.server.limits import Limits
from tests.server.bodies import DOUBLE
from tests.server.conftest import Site, opened, read_response


@pytest.fixture(autouse=True)
def the_frontend_still_answers(site: Site) -> Iterator[None]:
    yield
    assert site.is_well()
    assert site.taken == 0


# What the frontend refuses ------------------------------------------------------------------------------------------


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


def test_an_endless_trailer_ends_the_connection(site: Site) -> None:
    raw = b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: "
    with site.connect() as connection, suppress(ConnectionError):
        connection.sendall(raw + b"a" * 1_000_000)
        assert read_response(connection).status == 431
