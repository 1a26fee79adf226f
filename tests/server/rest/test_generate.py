"""`/generate` and `/generate_stream`: one row in plain JSON, and its tokens as events while they are written."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import Failed
from tests.server.conftest import PATIENCE, Site, opened

ECHO = "/v2/models/echo/generate"
ROW = {"x": [5, 8, 2]}


@pytest.fixture
def paced() -> Iterator[Site]:
    """A frontend whose gateway says a token when a test lets it."""
    with opened(FrontendConfig(port=0)) as site:
        site.gateway.pace = asyncio.Queue()
        yield site


def let(site: Site, error: Exception | None = None) -> None:
    """Let the gateway say one token more, or fail."""
    assert site.gateway.pace is not None
    site.loop.call_soon_threadsafe(site.gateway.pace.put_nowait, error)


def asked(site: Site, path: str = ECHO + "_stream") -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(ROW))
    return connection


def begun(site: Site) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Return a stream whose gateway has a pace, with its first token read."""
    site.gateway.pace = site.gateway.pace or asyncio.Queue()
    connection = asked(site)
    let(site)
    reply = connection.getresponse()
    assert event(reply)["y"] == [5]
    return connection, reply


def event(reply: http.client.HTTPResponse) -> dict[str, Any]:
    line, end = reply.readline(), reply.readline()
    assert (line[:6], end) == (b"data: ", b"\n")
    found: dict[str, Any] = json.loads(line[6:])
    return found


def events(body: bytes) -> list[dict[str, Any]]:
    *parts, end = body.split(b"\n\n")
    assert end == b""
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


@pytest.mark.parametrize(
    ("model", "given", "answer"),
    [
        ("scalar", {"x": 21}, {"y": 42.0}),
        ("double", {"x": list(range(16))}, {"y": [2.0 * x for x in range(16)]}),
        ("bytes", {"x": [[1, 2, 3], [4, 5, 6]]}, {"y": [[2, 4, 6], [8, 10, 12]]}),
        ("pair", {"a": [[1, 2], [3, 4]], "b": [5, 6, 7]}, {"sum": 28.0, "b": [5, 6, 7]}),
        ("pair", {"b": [5, 6, 7], "a": [1, 2, 3, 4]}, {"sum": 28.0, "b": [5, 6, 7]}),
    ],
)
def test_any_model_can_be_asked_and_its_outputs_are_as_its_rows_are(
    site: Site, model: str, given: Any, answer: Any
) -> None:
    about = {"model_name": model, "model_version": "1"}
    assert site.post(f"/v2/models/{model}/generate", given).json() == {**about, **answer}
    streamed = site.post(f"/v2/models/{model}/generate_stream", given)
    assert events(streamed.body) == [{**about, **answer}]


def test_tokens_are_events_and_make_up_the_answer(site: Site) -> None:
    reply = site.post(ECHO + "_stream", {**ROW, "id": "b"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [found["y"] for found in events(reply.body)] == [[5], [8], [2]]
    assert all(found["id"] == "b" for found in events(reply.body))


def test_a_token_is_there_before_the_next_one_is_written(paced: Site) -> None:
    connection = asked(paced)
    let(paced)
    reply = connection.getresponse()
    for token in (5, 8, 2):
        assert event(reply)["y"] == [token]
        let(paced)
    assert reply.read() == b""
    connection.request("GET", "/v2")  # the connection is as good as before
    assert json.loads(connection.getresponse().read())["name"] == "latebind"


def test_who_hangs_up_between_tokens_frees_the_places(paced: Site) -> None:
    connection, reply = begun(paced)
    reply.close()
    connection.close()
    paced.await_(asyncio.wait_for(paced.gateway.cancelled.wait(), PATIENCE))
    paced.await_(asyncio.wait_for(paced.gateway.until_taken(0), PATIENCE))


@pytest.mark.parametrize("error", [Failed("echo raised"), ValueError("in /srv/models")])
def test_an_error_between_tokens_is_an_event(paced: Site, error: Exception) -> None:
    _, reply = begun(paced)
    let(paced, error)
    (last,) = events(reply.read())
    assert list(last) == ["error"]
    assert "/srv" not in last["error"]
    paced.await_(asyncio.wait_for(paced.gateway.until_taken(0), PATIENCE))


def test_an_older_client_gets_plain_bytes_up_to_the_end(site: Site) -> None:
    body = json.dumps(ROW).encode()
    head = f"POST {ECHO}_stream HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reply = site.send(head + body)
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    assert [found["y"] for found in events(reply.body)] == [[5], [8], [2]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "'x' is missing"),
        ({"x": []}, r"must be \[-1, -1\]"),
        ({"x": [1] * 7}, "rows of 1 to 6"),
        ({"x": 5.5}, "not INT64"),
        ({"x": [2**70]}, "INT64"),
        ({"text_input": "a", "x": [1]}, "no input 'text_input'"),
        ({"x": [1], "parameters": {"timeout": -1}}, "timeout is -1"),
        ({"x": [1], "parameters": {"sequence_id": 5}}, "leave sequence_id out"),
        ({"x": [1], "parameters": {"sequence_id": "a"}}, "leave sequence_id out"),
        ({"x": [1], "parameters": 5}, "not a generate request"),
        (b"", "body is empty"),
        (b"[" * 10_000, "nested"),
    ],
)
@pytest.mark.parametrize("path", [ECHO, ECHO + "_stream"])
def test_what_is_no_row_is_refused(site: Site, path: str, given: object, says: str) -> None:
    reply = site.post(path, given)
    assert reply.status == 400
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(reply.error)
    assert site.is_well()
