"""An open frontend that speaks gRPC, with an arithmetic gateway behind it, and ways to call it."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from latebind.domain.config import FrontendConfig
from latebind.server.gateway import Array
from tests.server.conftest import Site, opened

GRPC = FrontendConfig(port=0, grpc_port=0)
SERVICE = "/inference.GRPCInferenceService/"
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
X = np.arange(32, dtype=np.float32).reshape(2, 16)


@pytest.fixture(scope="session")
def rpc_site() -> Iterator[Site]:
    with opened(GRPC) as found:
        yield found


@pytest.fixture
def client(rpc_site: Site) -> Iterator[Any]:
    with triton.InferenceServerClient(address(rpc_site)) as found:
        yield found


@pytest.fixture
def raw(rpc_site: Site) -> Iterator["Raw"]:
    with grpc.insecure_channel(address(rpc_site), ANY_SIZE) as channel:
        yield Raw(channel)


def address(site: Site) -> str:
    return f"127.0.0.1:{site.frontend.grpc_port}"


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


class Raw:
    """Sends bytes that may be no message at all to a method, and returns the bytes of the response."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def infer(self, message: Any, **options: Any) -> Any:
        return service_pb2.ModelInferResponse.FromString(self.call(message.SerializeToString(), **options))

    def call(self, data: bytes, method: str = SERVICE + "ModelInfer", **options: Any) -> bytes:
        answer: bytes = self.channel.unary_unary(method)(data, **{"timeout": 10.0, **options})
        return answer

    def refusal(self, data: bytes, method: str = SERVICE + "ModelInfer", **options: Any) -> tuple[str, str]:
        """Return status and message of a call that must fail."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(data, method, **options)
        return caught.value.code().name, caught.value.details()


def outputs(response: Any) -> list[Array]:
    """Return the outputs of a response."""
    kinds: dict[str, Any] = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "BOOL": np.bool_}
    return [
        np.frombuffer(content, kinds.get(output.datatype, output.datatype.lower())).reshape(output.shape)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    ]
