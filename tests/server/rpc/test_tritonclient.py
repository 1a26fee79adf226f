"""tritonclient's gRPC clients as their users have them, unchanged, against the frontend."""

from functools import partial
from queue import Queue
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.rpc.conftest import X, tensor

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


def _put(answers: "Queue[tuple[Any, Any]]", result: Any, error: Any) -> None:
    answers.put((result, error))
