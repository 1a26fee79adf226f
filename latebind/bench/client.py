"""The benchmarks' end of the wire: binary v2 requests, sent one after another or at Poisson times."""

import asyncio
import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from numpy.typing import NDArray

HEADER_LENGTH = "Inference-Header-Content-Length"
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
NUMPY_TYPES = {datatype: np.dtype(name) for name, datatype in DATATYPES.items()}

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Body:
    """A request ready to be sent."""

    headers: dict[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: HTTP status, seconds since it was meant to be sent, outputs by name, the stage that row 0 left at."""

    status: int
    seconds: float
    outputs: dict[str, Array]
    left_at: int


def encode(inputs: Mapping[str, Array], *, timeout: float | None = None) -> Body:
    """Write arrays `(N, *shape)` as a binary request; `timeout` in seconds."""
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    parameters: dict[str, object] = {"binary_data_output": True}
    if timeout is not None:
        parameters["timeout"] = round(timeout * 1e6)
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    header = json.dumps({"inputs": tensors, "parameters": parameters}).encode()
    data = header + b"".join(array.tobytes() for array in arrays.values())
    return Body({HEADER_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}, data)


def decode(status: int, header_length: str | None, data: bytes, seconds: float) -> Answered:
    """Read a reply; one that is no answer has no outputs."""
    if status != 200 or header_length is None:
        return Answered(status, seconds, {}, -1)
    start = int(header_length)
    header = json.loads(data[:start])
    outputs: dict[str, Array] = {}
    for tensor in header["outputs"]:
        size = tensor["parameters"]["binary_data_size"]
        array = np.frombuffer(data[start : start + size], NUMPY_TYPES[tensor["datatype"]])
        outputs[tensor["name"]] = array.reshape(tensor["shape"])
        start += size
    left_at = header.get("parameters", {}).get("left_at", -1)
    return Answered(status, seconds, outputs, left_at[0] if isinstance(left_at, list) else left_at)


class Caller:
    """One connection that is kept open, for requests one after another."""

    def __init__(self, url: str, model: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._path = f"/v2/models/{model}/infer"

    def __call__(self, body: Body) -> Answered:
        """Send one request and wait for its answer."""
        begun = time.perf_counter()
        self._connection.request("POST", self._path, body.data, body.headers)
        response = self._connection.getresponse()
        data = response.read()
        seconds = time.perf_counter() - begun
        return decode(response.status, response.headers.get(HEADER_LENGTH), data, seconds)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def poisson_load(url: str, model: str, bodies: Sequence[Body], *, rate: float, seed: int) -> list[Answered]:
    """Send `bodies` at `rate` a second with exponential gaps, never waiting for answers; one answer for each.

    Seconds count from the time at which a request was meant to be sent, so a late sender flatters nobody.
    """
    random = Random(seed)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, base_url=url) as session:
        start = time.perf_counter() + 0.1
        due = start
        tasks: list[asyncio.Task[Answered]] = []
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                due += random.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(group.create_task(_send(session, model, body, due)))
        return [task.result() for task in tasks]


async def _send(session: aiohttp.ClientSession, model: str, body: Body, due: float) -> Answered:
    async with session.post(f"/v2/models/{model}/infer", data=body.data, headers=body.headers) as response:
        data = await response.read()
        seconds = time.perf_counter() - due
        return decode(response.status, response.headers.get(HEADER_LENGTH), data, seconds)
