"""One call as bytes in each protocol, checked; clients that repeat it in a closed loop, or send it at given times.

Closed loops over HTTP are wrk's where it is installed, else our own, which take more of the cores; over gRPC our own.
"""

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection
from math import inf, isfinite
from pathlib import Path

import aiohttp
import numpy as np

from latebind.bench.client import HEADER_LENGTH, Array, decode, encode
from latebind.bench.ledger.clients import GRPC_METHOD
from latebind.bench.ledger.questions import Protocol
from latebind.bench.server import cpu_seconds
from latebind.domain.errors import ConfigError
from research.live import in_time
from research.peers.servers import Served
from research.sides import Figures

PATIENCE = 10.0  # seconds: who was not answered by then is not waited for
DRAIN = 0.5  # seconds between two runs


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to be sent to a path."""

    protocol: Protocol
    path: str
    headers: Mapping[str, str]
    data: bytes


def written(protocol: Protocol, model: str, rows: Array, *, timeout: float | None = None) -> Call:
    """Return a call with rows `(N, *shape) float32` as input x; the answer is y. `timeout` (seconds) only in binary."""
    path = f"/v2/models/{model}/infer"
    match protocol:
        case Protocol.JSON:
            tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
            data = json.dumps({"inputs": [tensor]}).encode()
            return Call(protocol, path, {"Content-Type": "application/json"}, data)
        case Protocol.BINARY:
            body = encode({"x": rows}, timeout=timeout)
            return Call(protocol, path, body.headers, body.data)
        case Protocol.GRPC:
            from tritonclient.grpc import service_pb2  # noqa: PLC0415  (grpc is optional)

            part = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=rows.shape)
            request = service_pb2.ModelInferRequest(
                model_name=model, inputs=[part], raw_input_contents=[rows.tobytes()]
            )
            return Call(protocol, GRPC_METHOD, {}, request.SerializeToString())


def as_base64(call: Call, rows: Array) -> Call:
    """Return a JSON call with its tensor as base64, which LitServe's application reads several times faster."""
    tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "base64": b64encode(rows.tobytes()).decode()}
    return replace(call, data=json.dumps({"inputs": [tensor]}).encode())


def answer(served: Served, call: Call) -> Array:
    """Send a call and return y. Raises `ConfigError` where there is no answer."""
    if call.protocol is Protocol.GRPC:
        return _grpc_answer(served, call)
    connection = HTTPConnection("127.0.0.1", served.http, timeout=6 * PATIENCE)
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


def _grpc_answer(served: Served, call: Call) -> Array:
    import grpc  # noqa: PLC0415  (grpc is optional)
    from tritonclient.grpc import service_pb2  # noqa: PLC0415

    with grpc.insecure_channel(f"127.0.0.1:{served.grpc}") as channel:
        try:
            reply = channel.unary_unary(call.path)(call.data, timeout=6 * PATIENCE)
        except grpc.RpcError as error:
            raise ConfigError(f"a gRPC call was answered {error}") from None
    message = service_pb2.ModelInferResponse.FromString(reply)
    (tensor,), (data,) = message.outputs, message.raw_output_contents
    found: Array = np.frombuffer(data, np.float32).reshape(tuple(tensor.shape))
    return found


def check(served: Served, call: Call, right: Array, *, who: str) -> None:
    """Raise `ConfigError` where a server does not answer y = `right`, nearly."""
    given = answer(served, call)
    if given.dtype != right.dtype or given.shape != right.shape or not np.allclose(given, right, rtol=1e-3, atol=1e-4):
        raise ConfigError(f"{who} answers {call.protocol} calls wrong: {given!r}, not {right!r}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What so many clients got: requests a second, latencies in seconds, and the server's CPU time.

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
    wrk = shutil.which("wrk")
    if wrk and call.protocol is not Protocol.GRPC:
        requests, took, p50, p99, failed = _wrk(wrk, served, call, clients, seconds)
    else:
        every = asyncio.run(_closed_loop(served, call, clients, seconds))
        good = [one for one in every if isfinite(one)]
        requests, took, failed = len(good), seconds, len(every) - len(good)
        p50, p99 = np.percentile(good or [np.nan], [50, 99]).tolist()
    cpu = cpu_seconds(served.process) - before
    return Loaded(requests / took, p50, p99, failed, cpu / max(1, requests))


async def play(served: Served, call: Call, times: Sequence[float]) -> Figures:
    """Send a call over HTTP at these times whatever becomes of it; return the seconds to each answer, inf without."""
    async with _session(served) as session:
        begun = time.perf_counter()
        seconds = await in_time([(at, partial(_ask, session, call, begun + at)) for at in times])
        await asyncio.sleep(DRAIN)
    return np.array(seconds)


async def _closed_loop(served: Served, call: Call, clients: int, seconds: float) -> list[float]:
    """Return the seconds of all calls, inf where one failed."""
    took, until = list[float](), time.perf_counter() + seconds

    async def client(ask: Callable[[float], Awaitable[float]]) -> None:
        while (now := time.perf_counter()) < until:
            took.append(await ask(now))

    if call.protocol is Protocol.GRPC:
        await asyncio.gather(*(_grpc_client(served, call, client) for _ in range(clients)))
    else:
        async with _session(served) as session:
            await asyncio.gather(*(client(partial(_ask, session, call)) for _ in range(clients)))
    return took


def _session(served: Served) -> aiohttp.ClientSession:
    timeout, connector = aiohttp.ClientTimeout(total=PATIENCE), aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(served.url, connector=connector, timeout=timeout)


async def _ask(session: aiohttp.ClientSession, call: Call, due: float) -> float:
    try:
        async with session.post(call.path, data=call.data, headers=call.headers) as reply:
            await reply.read()
            return time.perf_counter() - due if reply.status == 200 else inf
    except (TimeoutError, aiohttp.ClientError):
        return inf


async def _grpc_client(
    served: Served, call: Call, client: Callable[[Callable[[float], Awaitable[float]]], Awaitable[None]]
) -> None:
    import grpc.aio  # noqa: PLC0415  (grpc is optional)

    options = [("grpc.use_local_subchannel_pool", 1)]  # else all clients would share one connection
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.grpc}", options=options) as channel:
        method = channel.unary_unary(call.path)

        async def ask(due: float) -> float:
            try:
                await method(call.data)
            except grpc.aio.AioRpcError:
                return inf
            return time.perf_counter() - due

        await client(ask)


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


def _wrk(wrk: str, served: Served, call: Call, clients: int, seconds: float) -> tuple[int, float, float, float, int]:
    """Return requests, seconds, p50, p99 and how many failed."""
    with tempfile.TemporaryDirectory() as folder:
        body, script = Path(folder) / "body", Path(folder) / "script.lua"
        body.write_bytes(call.data)
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in call.headers.items())
        script.write_text(SCRIPT.format(body=body, headers=headers))
        options = ["-t", "1", "-c", str(clients), "-d", f"{round(seconds)}s", "-s", str(script)]
        done = subprocess.run([wrk, *options, served.url + call.path], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"wrk ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith(FOUND))
    found = json.loads(line.removeprefix(FOUND))
    return found["requests"], found["seconds"], found["p50"], found["p99"], found["failed"]
