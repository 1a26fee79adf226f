"""Tokens over gRPC's stream as they are written: a response for each piece, the last one marked."""

import asyncio
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
ROW = np.array([[5, 8, 2]])


@pytest.fixture
def paced() -> Iterator[Site]:
    """A frontend whose gateway says a token when a test lets it."""
    with opened(BOTH) as site:
        site.gateway.pace = asyncio.Queue()
        yield site


class Stream:
    """A client's stream, whose responses come in their order."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.client: Any = triton.InferenceServerClient(address(site))
        self._responses: Queue[tuple[Any, Any]] = Queue()
        self.client.start_stream(lambda result, error: self._responses.put((result, error)))

    def ask(self, name: str, row: Any = ROW, **parameters: Any) -> None:
        given = [tensor(row, "x", "INT64")] if row is ROW or row.dtype.kind == "i" else [tensor(row)]
        model = "echo" if row.dtype.kind == "i" else "double"
        self.client.async_stream_infer(model, given, request_id=name, parameters=parameters or None)

    def next(self) -> tuple[str, list[Any], bool | None]:
        """Return the id of the next response, its tokens and whether it is the last one of its call."""
        result, error = self._responses.get(timeout=PATIENCE)
        assert error is None, error
        told = result.get_response()
        final = told.parameters[FINAL].bool_param if FINAL in told.parameters else None
        return told.id, result.as_numpy("y").flatten().tolist(), final

    def error(self) -> str:
        _, error = self._responses.get(timeout=PATIENCE)
        return str(error)

    def let(self, error: Exception | None = None) -> None:
        """Let the gateway say one token more, or fail."""
        assert self.site.gateway.pace is not None
        self.site.loop.call_soon_threadsafe(self.site.gateway.pace.put_nowait, error)

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()


@pytest.fixture
def stream(paced: Site) -> Iterator[Stream]:
    found = Stream(paced)
    yield found
    found.close()


def test_tokens_come_as_they_are_written_and_the_last_is_marked(stream: Stream) -> None:
    stream.ask("a", stream=True)
    for token, is_last in ((5, False), (8, False), (2, True)):
        stream.let()
        assert stream.next() == ("a", [token], is_last)
    stream.site.await_(asyncio.wait_for(stream.site.gateway.until_taken(0), PATIENCE))


def test_other_calls_are_answered_between_tokens(stream: Stream) -> None:
    stream.ask("a", stream=True)
    stream.let()
    assert stream.next()[0] == "a"
    stream.ask("b", stream=True)
    stream.let()
    stream.let()
    stream.let()
    stream.let()
    stream.let()
    found = [stream.next() for _ in range(5)]
    for name, tokens in (("a", [8, 2]), ("b", [5, 8, 2])):
        assert [tokens for named, tokens, _ in found if named == name] == [[token] for token in tokens]


def test_an_error_between_tokens_ends_its_call_alone(stream: Stream) -> None:
    stream.ask("a", stream=True)
    stream.let()
    assert stream.next() == ("a", [5], False)
    stream.let(Expired("too late for the rest"))
    assert "too late for the rest" in stream.error()
    stream.ask("b")
    assert stream.next() == ("b", [5, 8, 2], None)


def test_who_goes_between_tokens_frees_the_places(paced: Site) -> None:
    stream = Stream(paced)
    stream.ask("a", stream=True)
    stream.let()
    stream.next()
    stream.client.stop_stream(cancel_requests=True)
    paced.await_(asyncio.wait_for(paced.gateway.cancelled.wait(), PATIENCE))
    paced.await_(asyncio.wait_for(paced.gateway.until_taken(0), PATIENCE))
