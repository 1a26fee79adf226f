"""One call as bytes in each protocol, checked, and closed loops of clients that repeat it.

The clients are wrk for HTTP and h2load for gRPC, else our own, which take more of the cores.
"""

import asyncio
import json
import shutil
import struct
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from latebind.bench.client import HEADER_LENGTH, READ_BYTES, Array, Reply, decode, encode
from latebind.bench.ledger.clients import GRPC_METHOD
from latebind.bench.ledger.questions import Protocol
from latebind.bench.server import cpu_seconds
from latebind.domain.errors import ConfigError
from research.peers.servers import Served

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


def as_base64(call: Call, rows: Array) -> Call:
    """Return a JSON call with its tensor as base64, which LitServe's application reads several times faster."""
    tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "base64": b64encode(rows.tobytes()).decode()}
    return replace(call, data=json.dumps({"inputs": [tensor]}).encode())


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


async def closed_loop(served: Served, call: Call, *, clients: int, seconds: float) -> tuple[list[float], int]:
    """Send a call from so many clients, each after its answer to the one before; return seconds and how many failed."""
    client = _grpc_client if call.protocol is Protocol.GRPC else _http_client
    took: list[float] = []
    until = time.perf_counter() + seconds
    failed = await asyncio.gather(*(client(served, call, until, took) for _ in range(clients)))
    return took, sum(failed)


async def _http_client(served: Served, call: Call, until: float, took: list[float]) -> int:
    """Return how many calls failed; seconds of the others are added."""
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(call.data)), **call.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    data = f"POST {call.path} HTTP/1.1\r\n{lines}\r\n".encode() + call.data
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    failed = 0
    while (begun := time.perf_counter()) < until:
        writer.write(data)
        if await _status(reader) == 200:
            took.append(time.perf_counter() - begun)
        else:
            failed += 1
    writer.close()
    return failed


async def _status(reader: asyncio.StreamReader) -> int:
    reply = Reply()
    while not reply.whole:
        data = await reader.read(READ_BYTES)
        if not data:
            raise ConnectionError("a server closed the connection before it had answered")
        reply.feed(data)
    return reply.status


async def _grpc_client(served: Served, call: Call, until: float, took: list[float]) -> int:
    import grpc  # noqa: PLC0415  (grpc is optional)
    import grpc.aio  # noqa: PLC0415

    failed, message = 0, call.data[5:]
    options = [("grpc.use_local_subchannel_pool", 1)]  # else all clients would share one connection
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc}", options=options) as channel:
        method = channel.unary_unary(call.path)
        while (begun := time.perf_counter()) < until:
            try:
                await method(message)
                took.append(time.perf_counter() - begun)
            except grpc.aio.AioRpcError:
                failed += 1
    return failed


SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
{headers}
done = function(summary, latency, requests)
  local refused = summary.errors.status
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write
  failed = failed + refused + summary.errors.timeout
  io.write(string.format('\\nfound {{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "failed": %d}}\\n',
    summary.requests - refused, summary.duration / 1e6, latency:percentile(50) / 1e6,
    latency:percentile(99) / 1e6, failed))
end
"""
FOUND = "found "


@dataclass(frozen=True, slots=True)
class Loaded:
    """What so many clients got for `seconds`: requests a second, latencies in seconds, and the server's CPU time.

    `rate` counts answers, `failed` what was none; `cpu` is of all processes of the server, in seconds an answer.
    """

    rate: float
    p50: float
    p99: float
    failed: int
    cpu: float


def load(served: Served, call: Call, *, clients: int, seconds: float) -> Loaded:
    """Send a call from so many clients, each waiting for its answer before it sends again."""
    before = cpu_seconds(served.process)
    requests, took, p50, p99, failed = _run(served, call, clients, seconds)
    cpu = cpu_seconds(served.process) - before
    return Loaded(requests / took, p50, p99, failed, cpu / max(1, requests))


def tool(protocol: Protocol) -> str:
    """Return the client that will be used for a protocol, as tables name it."""
    wanted = "h2load" if protocol is Protocol.GRPC else "wrk"
    return wanted if shutil.which(wanted) else "our own client"


Counted = tuple[int, float, float, float, int]  # requests, seconds, p50, p99, failed


def _run(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    match tool(call.protocol):
        case "wrk":
            return _wrk(served, call, clients, seconds)
        case "h2load":
            return _h2load(served, call, clients, seconds)
        case _:
            return _own(served, call, clients, seconds)


def _wrk(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder) / "body", Path(folder) / "script.lua"
        body.write_bytes(call.data)
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in call.headers.items())
        script.write_text(SCRIPT.format(body=body, headers=headers))
        options = ["-t", "1", "-c", str(clients), "-d", f"{round(seconds)}s", "-s", str(script)]
        output = _called(["wrk", *options, served.url + call.path])
    found = json.loads(next(line for line in output.splitlines() if line.startswith(FOUND)).removeprefix(FOUND))
    return found["requests"], found["seconds"], found["p50"], found["p99"], found["failed"]


def _h2load(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    """Each client has a connection of its own. An answer without data is a failure, for h2load sees no gRPC status."""
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(call.data)
        options = ["-t1", f"-c{clients}", "-m1", f"-D{round(seconds)}", "-d", str(body), f"--log-file={log}"]
        headers = [part for name, value in call.headers.items() for part in ("-H", f"{name}: {value}")]
        output = _called(["h2load", *options, *headers, f"http://127.0.0.1:{served.grpc}{call.path}"])
        rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    good = rows[rows[:, 1] == 200]
    failed = len(rows) - len(good)
    if _data_bytes(output) < call.least * len(good):
        failed = len(rows)
    return len(good), float(round(seconds)), *_percentiles(good[:, 2] / 1e6), failed


def _data_bytes(output: str) -> int:
    """Return the bytes of data, headers not counted, that h2load received: `... 6553600) data`."""
    line = next(line for line in output.splitlines() if line.startswith("traffic:"))
    return int(line.rsplit("(", 1)[1].split(")")[0])


def _own(served: Served, call: Call, clients: int, seconds: float) -> Counted:
    took, failed = asyncio.run(closed_loop(served, call, clients=clients, seconds=seconds))
    return len(took), seconds, *_percentiles(took), failed


def _percentiles(seconds: ArrayLike) -> tuple[float, float]:
    """Return p50 and p99, NaN where nothing was answered."""
    p50, p99 = np.percentile(np.array(seconds) if np.size(seconds) else [np.nan], [50, 99])
    return float(p50), float(p99)


def _called(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout
