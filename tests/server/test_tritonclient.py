"""tritonclient as its users have it, unchanged, against the frontend."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from latebind.server.gateway import Array
from tests.server.conftest import Site

X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{site.port}") as found:
        yield found


def tensor(array: Array, name: str = "x", *, binary: bool = True, datatype: str = "FP32") -> Any:
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def test_it_reads_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["name"] == "latebind"
    assert client.get_model_metadata("double", "1")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert "double" in {entry["name"] for entry in client.get_model_repository_index()}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_it_infers_in_json_and_binary(client: Any, binary_in: bool, binary_out: bool | None) -> None:
    outputs = None if binary_out is None else [triton.InferRequestedOutput("y", binary_data=binary_out)]
    result = client.infer("double", [tensor(X, binary=binary_in)], outputs=outputs, request_id="7", timeout=60_000_000)
    np.testing.assert_array_equal(result.as_numpy("y"), X * 2)
    assert result.get_response()["id"] == "7"
    assert result.get_response()["parameters"] == {"left_at": [2, 2], "stages": 3}


def test_it_is_told_clearly_what_is_wrong(client: Any) -> None:
    cases: list[tuple[str, list[Any], dict[str, Any], str, str]] = [
        ("none", [tensor(X)], {}, "404", "there is no model 'none'"),
        ("double", [tensor(X)], {"model_version": "9"}, "404", "has no version"),
        ("double", [tensor(X[:, :15])], {}, "400", "shape"),
        ("double", [tensor(X, "z")], {}, "400", "has no input"),
        ("double", [tensor(X.astype(np.int32), datatype="INT32")], {}, "400", "must be FP32"),
        ("double", [tensor(np.array([[b"a"]], np.object_), datatype="BYTES")], {}, "400", "not served"),
        ("pair", [tensor(np.ones((1, 2, 2), np.float32), "a")], {}, "400", "missing"),
        ("double", [tensor(X)], {"sequence_id": 5}, "400", "sequences"),
        (
            "double",
            [tensor(X)],
            {"outputs": [triton.InferRequestedOutput("y", class_count=1025)]},
            "400",
            "ask for 1 to 1024 classes",
        ),
        ("large", [tensor(np.zeros((17, 1024, 1024), np.float32))], {}, "413", "more than"),
    ]
    for model, inputs, options, status, reason in cases:
        with pytest.raises(InferenceServerException, match=reason) as caught:
            client.infer(model, inputs, **options)
        assert caught.value.status() == status
    assert client.infer("double", [tensor(X)]).as_numpy("y").shape == (2, 16)


def test_the_asynchronous_client_works_too(site: Site) -> None:
    async def talk() -> list[Any]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{site.port}") as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("double"))["platform"] == "latebind"
            assert len(await client.get_model_repository_index()) > 1
            calls = [client.infer("double", [tensor(X + i, binary=i % 2 == 0)]) for i in range(50)]
            return await asyncio.gather(*calls)

    for i, result in enumerate(asyncio.run(talk())):
        np.testing.assert_array_equal(result.as_numpy("y"), (X + i) * 2)
