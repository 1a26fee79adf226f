"""An open frontend that speaks gRPC, with an arithmetic gateway behind it, and ways to call it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from latebind.server.gateway import Array
from tests.server.conftest import Site, address

# datatype -> the field of typed contents with its values
CONTENTS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    with triton.InferenceServerClient(address(site)) as found:
        yield found


def tensor(array: Array, name: str = "x", datatype: str = "FP32") -> Any:
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def request(model: str = "double", *, raw: list[bytes] | None = None, **fields: Any) -> Any:
    """A request for one model, of one input unless `inputs` says otherwise."""
    inputs = fields.pop("inputs", [given()])
    return service_pb2.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw or [], **fields)


def given(name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (2, 16), **contents: Any) -> Any:
    if contents:
        contents = {"contents": service_pb2.InferTensorContents(**contents)}
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, **contents)


def outputs(response: Any) -> list[Array]:
    """Return the outputs of a response."""
    kinds: dict[str, Any] = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "BOOL": np.bool_}
    return [
        np.frombuffer(content, kinds.get(output.datatype, output.datatype.lower())).reshape(output.shape)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    ]
