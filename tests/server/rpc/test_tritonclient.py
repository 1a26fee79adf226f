"""tritonclient's gRPC clients as their users have them, unchanged, against the door."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from latebind.server.door import Door
from tests.server.arithmetic import Arithmetic
from tests.server.rpc.conftest import GRPC, X, tensor

PATIENCE = 60.0


def test_it_reads_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata().name == "latebind"
    metadata = client.get_model_metadata("double", "1", as_json=True)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "16"]}]
    states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
    assert states["double"] == "READY"
    with pytest.raises(InferenceServerException, match="no model 'none'"):
        client.get_model_metadata("none")


def test_it_infers(client: Any) -> None:
    result = client.infer(
        "double", [tensor(X)], request_id="7", timeout=60_000_000, priority=1, client_timeout=PATIENCE
    )
    np.testing.assert_array_equal(result.as_numpy("y"), X * 2)
    assert result.get_response().id == "7"


def test_it_gets_the_outputs_that_it_asks_for_in_half_precision_and_truths_too(client: Any) -> None:
    inputs = [tensor(np.ones((2, 2, 2), np.float32), "a"), tensor(np.ones((2, 3), np.int64), "b", "INT64")]
    one = client.infer("pair", inputs, outputs=[triton.InferRequestedOutput("b")])
    assert one.as_numpy("sum") is None
    assert one.as_numpy("b").tolist() == [[1, 1, 1], [1, 1, 1]]
    half = np.array([[1, 2, 3, 4]], np.float16)
    assert client.infer("half", [tensor(half, datatype="FP16")]).as_numpy("y").tolist() == [[2, 4, 6, 8]]
    truths = np.array([[True, False, True]])
    assert client.infer("invert", [tensor(truths, datatype="BOOL")]).as_numpy("y").tolist() == [[False, True, False]]


def test_it_streams(client: Any) -> None:
    answers: Queue[tuple[Any, Any]] = Queue()
    client.start_stream(partial(_put, answers))
    for i in range(40):
        client.async_stream_infer("double", [tensor(X + i)], request_id=str(i))
    client.async_stream_infer("none", [tensor(X)], request_id="wrong")
    client.async_stream_infer("double", [tensor(X)], request_id="last", enable_empty_final_response=True)
    found = [answers.get(timeout=PATIENCE) for _ in range(42)]
    client.stop_stream()
    assert [result.get_response().id for result, _ in found[:40]] == [str(i) for i in range(40)]
    assert [result.as_numpy("y")[0, 0] for result, _ in found[:40]] == [2.0 * i for i in range(40)]
    assert "no model 'none'" in str(found[40][1])
    assert found[41][0].get_response().parameters["triton_final_response"].bool_param


def test_an_error_ends_a_stream_where_the_client_wants_its_status(client: Any) -> None:
    answers: Queue[tuple[Any, Any]] = Queue()
    client.start_stream(partial(_put, answers), headers={"triton_grpc_error": "true"})
    client.async_stream_infer("double", [tensor(X)])
    client.async_stream_infer("none", [tensor(X)])
    assert answers.get(timeout=PATIENCE)[1] is None
    assert answers.get(timeout=PATIENCE)[1].status() == "StatusCode.NOT_FOUND"
    client.stop_stream()


def test_the_asynchronous_client_works_too() -> None:
    async def talk(client: Any) -> list[Any]:
        assert await client.is_server_ready()
        assert (await client.get_model_metadata("double")).platform == "latebind"
        assert len((await client.get_model_repository_index()).models) > 1
        results = await asyncio.gather(*[client.infer("double", [tensor(X + i)]) for i in range(50)])
        streamed = [result async for result, _ in client.stream_infer(_requests())]
        return [*results, *streamed]

    async def test() -> list[Any]:
        async with (
            Door(Arithmetic(), GRPC) as door,
            triton_aio.InferenceServerClient(f"127.0.0.1:{door.grpc_port}") as client,
        ):
            return await talk(client)

    for i, result in enumerate(asyncio.run(test())):
        np.testing.assert_array_equal(result.as_numpy("y"), (X + i) * 2)


async def _requests() -> AsyncIterator[dict[str, Any]]:
    for i in range(50, 60):
        yield {"model_name": "double", "inputs": [tensor(X + i)]}


def _put(answers: "Queue[tuple[Any, Any]]", result: Any, error: Any) -> None:
    answers.put((result, error))
