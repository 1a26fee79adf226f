"""Tokens over gRPC's stream as they are written: a response for each piece, the last one marked."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as plain
import uvloop

from latebind.domain.errors import Expired
from latebind.engine.client import EngineClient
from tests.sequences import backwards, some_sentences
from tests.server.conftest import BOTH, PATIENCE, Site, address, opened
from tests.server.real import real_frontend, until_all_is_free
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


# gRPC with a real engine behind the frontend --------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """A real engine behind an open frontend, and a client of either kind."""

    engine: EngineClient
    loop: asyncio.AbstractEventLoop
    client: Any
    http: Any
    port: int

    def forget_nothing(self) -> None:
        """See that every slot is free again."""
        asyncio.run_coroutine_threadsafe(until_all_is_free(self.engine), self.loop).result(PATIENCE)


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[Served]:
    """`chain` and `backwards`, on an event loop of their own."""
    started: Future[tuple[EngineClient, asyncio.AbstractEventLoop, int, int]] = Future()

    async def serve() -> None:
        async with real_frontend(models, "chain", "backwards", grpc_port=0) as (engine, frontend):
            assert frontend.grpc_port is not None
            started.set_result((engine, asyncio.get_running_loop(), frontend.grpc_port, frontend.port))
            await ended.wait()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    engine, loop, grpc_port, port = started.result(200.0)
    with (
        triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client,
        plain.InferenceServerClient(f"127.0.0.1:{port}", concurrency=8) as over_http,
    ):
        yield Served(engine, loop, client, over_http, port)
    loop.call_soon_threadsafe(ended.set)
    thread.join(30.0)


def words(sentence: list[int]) -> list[Any]:
    return [tensor(np.array([sentence]), "tokens", "INT64")]


def test_tokens_of_many_come_in_pieces_that_make_up_their_answers(served: Served) -> None:
    responses: Queue[tuple[Any, Any]] = Queue()
    served.client.start_stream(lambda result, error: responses.put((result, error)))
    known = some_sentences(60, seed=1)
    for number, sentence in enumerate(known):
        parameters = {"stream": True} if number % 3 else None
        served.client.async_stream_infer("backwards", words(sentence), request_id=str(number), parameters=parameters)
    said: dict[int, list[int]] = {number: [] for number in range(len(known))}
    left, pieces = len(known), 0
    while left:
        result, error = responses.get(timeout=PATIENCE)
        assert error is None
        told, pieces = result.get_response(), pieces + 1
        said[int(told.id)] += result.as_numpy("tokens").flatten().tolist()
        left -= told.parameters["triton_final_response"].bool_param or not int(told.id) % 3
    served.client.stop_stream()
    assert list(said.values()) == [backwards(sentence) for sentence in known]
    assert pieces > len(known) + 10  # on a machine with much to do, several tokens share a piece
    served.forget_nothing()
