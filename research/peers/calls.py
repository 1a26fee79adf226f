"""One call as bytes in each protocol, and a check that a server answers it correctly."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection

import numpy as np

from latebind.bench.client import HEADER_LENGTH, Array, decode, encode
from latebind.bench.ledger.questions import Protocol
from latebind.bench.ledger.wire import GRPC_METHOD
from latebind.domain.errors import ConfigError
from research.peers.processes import Served

PATIENCE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to be sent to a path; `least` is how long a right answer must be, in bytes."""

    protocol: Protocol
    path: str
    headers: Mapping[str, str]
    data: bytes
    least: int


def written(protocol: Protocol, model: str, rows: Array, *, timeout: float | None = None) -> Call:
    """Return a call with rows `(N, *shape) float32` as input x; the answer is y. `timeout` (seconds) only in binary."""
    path = f"/v2/models/{model}/infer"
    match protocol:
        case Protocol.JSON:
            tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
            data = json.dumps({"inputs": [tensor]}).encode()
            return Call(protocol, path, {"Content-Type": "application/json"}, data, rows.size)
        case Protocol.BINARY:
            body = encode({"x": rows}, timeout=timeout)
            return Call(protocol, path, body.headers, body.data, rows.nbytes)
        case Protocol.GRPC:
            headers = {"content-type": "application/grpc", "te": "trailers"}
            return Call(protocol, GRPC_METHOD, headers, _framed(_message(model, rows)), rows.nbytes)


def answer(served: Served, call: Call) -> Array:
    """Send a call and return y. Raises `ConfigError` where there is no answer."""
    return _grpc_answer(served, call) if call.protocol is Protocol.GRPC else _http_answer(served, call)


def check(served: Served, call: Call, right: Array, *, who: str, exact: bool = True) -> None:
    """Raise `ConfigError` where a server does not answer y = `right`, to the bit or nearly."""
    given = answer(served, call)
    same = np.array_equal(given, right) if exact else np.allclose(given, right, rtol=1e-3, atol=1e-4)
    if given.dtype != right.dtype or given.shape != right.shape or not same:
        raise ConfigError(f"{who} answers {call.protocol} calls wrong: {given!r}, not {right!r}")


def _http_answer(served: Served, call: Call) -> Array:
    connection = HTTPConnection("127.0.0.1", served.http, timeout=PATIENCE)
    connection.request("POST", call.path, call.data, dict(call.headers))
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    if reply.status != 200:
        raise ConfigError(f"a {call.protocol} call was answered {reply.status}: {data[:200]!r}")
    if call.protocol is Protocol.BINARY:
        return decode(reply.status, reply.getheader(HEADER_LENGTH), data, 0.0).outputs["y"]
    (tensor,) = json.loads(data)["outputs"]
    found: Array = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    return found


def _message(model: str, rows: Array) -> bytes:
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  (grpc is optional)

    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=rows.shape)
    request = service_pb2.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[rows.tobytes()])
    data: bytes = request.SerializeToString()
    return data


def _framed(message: bytes) -> bytes:
    """Put gRPC's prefix before a message: not compressed, so many bytes."""
    return struct.pack(">BI", 0, len(message)) + message


def _grpc_answer(served: Served, call: Call) -> Array:
    import grpc  # noqa: PLC0415  (grpc is optional)
    from tritonclient.grpc import service_pb2  # noqa: PLC0415

    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        try:
            reply = channel.unary_unary(call.path)(call.data[5:], timeout=PATIENCE)
        except grpc.RpcError as error:
            raise ConfigError(f"a gRPC call was answered {error}") from None
    message = service_pb2.ModelInferResponse.FromString(reply)
    (tensor,), (data,) = message.outputs, message.raw_output_contents
    found: Array = np.frombuffer(data, np.float32).reshape(tuple(tensor.shape))
    return found
