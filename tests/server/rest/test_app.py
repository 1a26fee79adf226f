"""The protocol over HTTP as a plain client sees it: what is answered, what is refused, and that the frontend stands."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from msgspec import structs

from latebind import __version__
from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError
from latebind.server.limits import Limits
from latebind.server.service import EXTENSIONS
from tests.server.bodies import DOUBLE, SCALAR, request
from tests.server.conftest import Site, opened, read_response, scalar
from tests.server.hostile.wire import send_raw


@pytest.fixture(autouse=True)
def the_frontend_still_answers(site: Site) -> Iterator[None]:
    yield
    assert site.is_well()
    assert site.taken == 0


# What is answered ---------------------------------------------------------------------------------------------------


def test_the_server_says_what_it_is_and_only_what_it_can(site: Site) -> None:
    extensions = list(EXTENSIONS)
    assert site.get("/v2").json() == {"name": "latebind", "version": __version__, "extensions": extensions}


HEALTH: dict[str, dict[str, object]] = {
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    "/v2/models/double/ready": {"name": "double", "ready": True},
    "/v2/models/double/versions/1/ready": {"name": "double", "ready": True},
}


def test_health_is_a_status_and_says_the_same_in_its_body() -> None:
    with opened() as site:
        for path, body in HEALTH.items():
            assert (site.get(path).status, site.get(path).json()) == (200, body)
        site.gateway.unready.add("double")
        site.gateway.is_live = False
        for path, body in HEALTH.items():
            ill = {key: False if value is True else value for key, value in body.items()}
            assert (site.get(path).status, site.get(path).json()) == (400, ill)
        assert site.get("/v2/models/half/ready").status == 200


def test_models_are_described_with_or_without_their_version(site: Site) -> None:
    described = site.get("/v2/models/pair").json()
    assert described["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2, 2]},
        {"name": "b", "datatype": "INT64", "shape": [-1, 3]},
    ]
    assert site.get("/v2/models/pair/versions/1").json() == described
    assert site.get("/v2/models/%70air").json() == described


def test_a_chunked_body_is_read_to_its_end(site: Site) -> None:
    body = json.dumps(request()).encode()
    parts = (body[i : i + 7] for i in range(0, len(body), 7))
    assert site.call("POST", DOUBLE, parts).status == 200  # http.client chunks what has no length


# What the frontend refuses ------------------------------------------------------------------------------------------


def test_limits_of_the_configuration_are_kept_in_place_of_the_usual_ones() -> None:
    config = FrontendConfig(port=0, max_body=3000, max_json=2000, max_connections=2)
    with opened(config) as site:
        for size, told in ((2500, "2000"), (3500, "3000")):
            reply = site.post(DOUBLE, json.dumps(request()).encode() + b" " * size)
            assert (reply.status, told in reply.error) == (413, True)
        with site.connect(), site.connect():
            assert site.get("/v2").status == 503
    assert Limits.by(FrontendConfig()) == Limits()
    for name, wrong in (("max_body", 0), ("max_json", 1 << 31), ("max_connections", 0)):
        with pytest.raises(ConfigError, match=rf"server\.{name} is"):
            structs.replace(config, **{name: wrong})


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


# Heads of requests as RFC 9110 and RFC 9112 have them -----------------------------------------------------------------


BODY = json.dumps(request(scalar(21.0))).encode()
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % SCALAR.encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def in_chunks(count: int) -> bytes:
    """A chunked body of `count` chunks of one byte."""
    return b"".join([b"1\r\n%c\r\n" % byte for byte in BODY.ljust(count)]) + b"0\r\n\r\n"


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


@pytest.mark.parametrize("target", ["http://localhost/v2", "HTTP://LOCALHOST:80/v2?a=b", "https://127.0.0.1/v2"])
def test_a_whole_url_is_as_good_a_target_as_its_path(site: Site, target: str) -> None:
    reply, _ = send_raw(site, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert reply.json()["name"] == "latebind"


@pytest.mark.parametrize(
    "trailer", [b"Content-Encoding: zstd", b"Host: evil.example", b"Inference-Header-Content-Length: 0"]
)
def test_a_trailer_changes_nothing_that_the_head_has_said(site: Site, trailer: bytes) -> None:
    reply, _ = send_raw(site, CHUNKED + in_chunks(0)[:-2] + trailer + b"\r\n\r\n")
    assert reply.json()["outputs"][0]["data"] == [42.0]


def test_a_body_may_have_as_many_chunks_as_the_limit_says_and_no_more(site: Site) -> None:
    reply, _ = send_raw(site, CHUNKED + in_chunks(Limits().chunks))
    assert reply.json()["outputs"][0]["data"] == [42.0]
    reply, _ = send_raw(site, CHUNKED + in_chunks(Limits().chunks + 1))
    assert reply.status == 413
    assert "send fewer, larger ones" in reply.error


# The model repository extension over HTTP -----------------------------------------------------------------------------


SCALAR_MODEL = "/v2/repository/models/scalar"
HALF_MODEL = "/v2/repository/models/half"


@pytest.fixture
def managed() -> Iterator[Site]:
    with opened(FrontendConfig(port=0, manage=True)) as site:
        yield site


def states(site: Site, asked: bytes = b"") -> dict[str, str]:
    entries = site.post("/v2/repository/index", asked).json()
    return {entry["name"]: entry["state"] for entry in entries}


def test_a_model_that_the_engine_does_not_answer_for_is_not_listed_as_ready() -> None:
    with opened(FrontendConfig(port=0)) as site:
        site.gateway.unready.add("half")
        told = {name: state for name, state in states(site).items() if state != "READY"}
        assert told == {"half": "UNAVAILABLE"}
        listed = states(site, b'{"ready": true}')
        assert "half" not in listed
        assert "double" in listed
        site.gateway.unready.clear()
        assert states(site)["half"] == "READY"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (f"{HALF_MODEL}/load", {"parameters": {"version": 3}}, 400, "the version is 3"),
        (f"{HALF_MODEL}/load", {"parameters": {"version": "../1"}}, 400, "the version is '../1'"),
        (f"{HALF_MODEL}/load", {"parameters": []}, 400, "invalid for this call"),
        ("/v2/repository/models/../load", {}, 404, "there is no model '..'"),
        (f"{SCALAR_MODEL}/unload", {"parameters": {"unload_dependents": "yes"}}, 400, "give true or false"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    managed: Site, path: str, body: dict[str, object], status: int, text: str
) -> None:
    reply = managed.post(path, body)
    assert (reply.status, text in reply.error) == (status, True), reply.error


def test_a_model_that_is_down_answers_503_with_the_reason_and_is_not_ready(site: Site) -> None:
    site.shelf.down["scalar"] = "the engine died 3 times in 60 s while it ran"
    specs, site.gateway.models = site.gateway.models, {}
    reply = site.post(SCALAR, {})
    assert (reply.status, reply.json()["error"]) == (503, "the engine died 3 times in 60 s while it ran")
    assert reply.headers["retry-after"]
    assert site.get("/v2/models/scalar/ready").status == 400
    site.shelf.down.clear()
    site.gateway.models = specs


def test_whoever_asks_for_a_model_that_is_being_loaded_is_not_told_to_load_it(managed: Site) -> None:
    managed.post("/v2/repository/models/half/unload", b"")
    managed.shelf.loading.add("half")
    try:
        reply = managed.get("/v2/models/half")
        assert (reply.status, reply.error) == (404, "model 'half' is not served (loading): try again when it is ready")
    finally:
        managed.shelf.loading.clear()
        assert managed.post("/v2/repository/models/half/load", b"").status == 200


# Calls on one connection ----------------------------------------------------------------------------------------------


def test_a_connection_follows_a_model_to_its_next_version() -> None:
    with opened() as site, site.connect() as connection:
        for version in ("1", "7"):
            models = site.gateway.models
            site.gateway.models = {**models, "scalar": replace(models["scalar"], version=version)}
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY))
            assert read_response(connection).json()["model_version"] == version
