"""Answers in pieces, over HTTP as events and over gRPC's stream: tokens come while they are written, until one goes."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from latebind.domain.errors import Expired
from tests.server.conftest import BOTH, PATIENCE, Site, address, opened
from tests.server.rpc.conftest import tensor

FINAL = "triton_final_response"
ROW = [5, 8, 2]


@pytest.fixture
def paced() -> Iterator[Site]:
    """A frontend whose gateway says a token when a test lets it."""
    with opened(BOTH) as site:
        site.gateway.pace = asyncio.Queue()
        yield site
        site.await_(asyncio.wait_for(site.gateway.until_taken(0), PATIENCE))


def let(site: Site, error: Exception | None = None) -> None:
    """Let the gateway say one token more, or fail."""
    assert site.gateway.pace is not None
    site.loop.call_soon_threadsafe(site.gateway.pace.put_nowait, error)


class Events:
    """A client of `/generate_stream`, and of `/generate` on the same connection."""

    def __init__(self, site: Site) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
        self._reply: http.client.HTTPResponse | None = None

    def ask(self, name: str, path: str = "generate_stream") -> None:
        self._connection.request("POST", f"/v2/models/echo/{path}", json.dumps({"x": ROW, "id": name}))
        self._reply = None

    def next(self) -> tuple[str, list[int]] | str | None:
        """Return the id and the tokens of the next event, or its error; None behind the last."""
        self._reply = self._reply or self._connection.getresponse()
        line = self._reply.readline()
        if not line:
            return None
        assert (line[:6], self._reply.readline()) == (b"data: ", b"\n")
        found = json.loads(line[6:])
        return str(found["error"]) if "error" in found else (found["id"], found["y"])

    def whole(self) -> list[int]:
        """Return the answer to another call, all of it at once."""
        self.ask("whole", "generate")
        found: list[int] = json.loads(self._connection.getresponse().read())["y"]
        return found

    def leave(self) -> None:
        if self._reply is not None:
            self._reply.close()
        self._connection.close()


class Responses:
    """A client's stream over gRPC, whose responses come in their order."""

    def __init__(self, site: Site) -> None:
        self._client: Any = triton.InferenceServerClient(address(site))
        self._responses: Queue[tuple[Any, Any]] = Queue()
        self._client.start_stream(lambda result, error: self._responses.put((result, error)))
        self._ended = False

    def ask(self, name: str, *, stream: bool = True) -> None:
        given = [tensor(np.array([ROW]), "x", "INT64")]
        self._client.async_stream_infer("echo", given, request_id=name, parameters={"stream": True} if stream else None)
        self._ended = False

    def next(self) -> tuple[str, list[int]] | str | None:
        """Return the id and the tokens of the next response, or its error; None behind one marked as the last."""
        if self._ended:
            return None
        result, error = self._responses.get(timeout=PATIENCE)
        if error is not None:
            self._ended = True
            return str(error)
        told = result.get_response()
        self._ended = told.parameters[FINAL].bool_param or FINAL not in told.parameters
        return told.id, result.as_numpy("y").flatten().tolist()

    def whole(self) -> list[int]:
        """Return the answer to another call, all of it at once."""
        self.ask("whole", stream=False)
        found = self.next()
        assert isinstance(found, tuple)
        return found[1]

    def leave(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@pytest.fixture(params=[Events, Responses])
def stream(paced: Site, request: pytest.FixtureRequest) -> Iterator[Any]:
    found = request.param(paced)
    yield found
    found.leave()


def test_tokens_come_as_they_are_written_and_the_last_is_known(paced: Site, stream: Any) -> None:
    stream.ask("a")
    for token in ROW:
        let(paced)
        assert stream.next() == ("a", [token])
    assert stream.next() is None
    assert stream.whole() == ROW


@pytest.mark.parametrize("error", [Expired("too late for the rest"), ValueError("in /srv/models")])
def test_an_error_between_tokens_ends_its_call_alone(paced: Site, stream: Any, error: Exception) -> None:
    stream.ask("a")
    let(paced)
    assert stream.next() == ("a", [5])
    let(paced, error)
    told = stream.next()
    assert "too late for the rest" in told or "internal error, request id a" in told
    assert "/srv" not in told
    assert stream.next() is None
    assert stream.whole() == ROW


def test_who_leaves_between_tokens_frees_the_places(paced: Site, stream: Any) -> None:
    stream.ask("a")
    let(paced)
    stream.next()
    stream.leave()
    paced.await_(asyncio.wait_for(paced.gateway.cancelled.wait(), PATIENCE))
    paced.await_(asyncio.wait_for(paced.gateway.until_taken(0), PATIENCE))


def test_other_calls_of_a_stream_are_answered_between_tokens(paced: Site) -> None:
    stream = Responses(paced)
    stream.ask("a")
    let(paced)
    assert stream.next() == ("a", [5])
    stream.ask("b")
    for _ in range(5):
        let(paced)
    found = []
    for _ in range(5):
        stream._ended = False  # one of the two may have
        found.append(stream.next())
    for name, tokens in (("a", [8, 2]), ("b", ROW)):
        assert [each[1] for each in found if isinstance(each, tuple) and each[0] == name] == [[one] for one in tokens]
    stream.leave()
