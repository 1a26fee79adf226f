"""gRPC with a real engine behind the frontend: models, queries and sequences answer as they do over HTTP."""

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

from latebind.engine.client import EngineClient
from tests.sequences import backwards, some_sentences
from tests.server.conftest import PATIENCE
from tests.server.real import real_frontend, until_all_is_free
from tests.server.rpc.conftest import tensor


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
