"""The HTTP client of the benchmarks: binary v2 requests, one after another or at random times."""

import asyncio
import re
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httptools
import numpy as np
import orjson
from numpy.typing import NDArray

READ_BYTES = 1 << 16
IDLE = 5.0  # seconds: a frontend closes connections that are unused for twice as long
CONNECTIONS = 512  # at most; a request that finds none free waits for one, and the wait counts
DURATION = re.compile(r"dur=([\d.]+)")
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
    """One answer: HTTP status, seconds since it was meant to be sent, outputs by name, the stage at which row 0 left.

    `engine_seconds` are those from the request's arrival at the engine to its answer, as the reply reports them;
    `identity` is the id of the request.
    """

    status: int
    seconds: float
    outputs: dict[str, Array]
    left_at: int
    engine_seconds: float = 0.0
    identity: str = ""


def encode(inputs: Mapping[str, Array], *, timeout: float | None = None, binary: bool = True, **more: object) -> Body:
    """Write arrays `(N, *shape)` as a request, binary or all JSON; `timeout` in seconds, and `id` or `priority`."""
    arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    parameters: dict[str, object] = {"binary_data_output": True} if binary else {}
    if timeout is not None:
        parameters["timeout"] = round(timeout * 1e6)
    if "priority" in more:
        parameters["priority"] = more.pop("priority")
    tensors = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": DATATYPES[array.dtype.name],
            **({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel().tolist()}),
        }
        for name, array in arrays.items()
    ]
    text = orjson.dumps({**more, "inputs": tensors, "parameters": parameters})
    if not binary:
        return Body({"Content-Type": "application/json"}, text)
    data = text + b"".join(array.tobytes() for array in arrays.values())
    return Body({HEADER_LENGTH: str(len(text)), "Content-Type": "application/octet-stream"}, data)


def decode(
    status: int, header_length: str | None, data: bytes, seconds: float, *, timing: str | None = None
) -> Answered:
    """Read a reply; one that is not an answer has no outputs. `timing` is its Server-Timing header."""
    if status != 200:
        return Answered(status, seconds, {}, -1)
    start = int(header_length or len(data))
    header = orjson.loads(data[:start])
    outputs: dict[str, Array] = {}
    for tensor in header["outputs"]:
        size, dtype = tensor.get("parameters", {}).get("binary_data_size"), NUMPY_TYPES[tensor["datatype"]]
        if size is None:
            array: Array = np.array(tensor["data"], dtype)
        else:
            array = np.frombuffer(data[start : start + size], dtype)
            start += size
        outputs[tensor["name"]] = array.reshape(tensor["shape"])
    left_at = header.get("parameters", {}).get("left_at", -1)
    first = left_at[0] if isinstance(left_at, list) else left_at
    engine_seconds = sum(map(float, DURATION.findall(timing or ""))) / 1e3
    return Answered(status, seconds, outputs, first, engine_seconds, header.get("id", ""))


class Caller:
    """Sends requests for a model one after another over one connection, which is replaced after `idle` seconds.

    A request is one write of prepared bytes: `http.client` writes twice and takes a tenth of a millisecond more of the
    core that it shares with the frontend.
    """

    def __init__(self, url: str, model: str = "", *, idle: float = IDLE) -> None:
        parts = urlsplit(url)
        self.host, self._model = parts.netloc, model
        self._place = parts.hostname or "", parts.port or 80
        self._idle = idle
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._place, timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.perf_counter()

    def __call__(self, body: Body) -> Answered:
        """Send one request and wait for its answer."""
        return answered(*self.ask(written(self.host, self._model, body)))

    @property
    def port(self) -> int:
        """The port at this end, which identifies the connection."""
        return int(self._socket.getsockname()[1])

    def send(self, data: bytes) -> None:
        """Send a request and do not wait for its reply."""
        self._socket.sendall(data)

    def ask(self, data: bytes) -> tuple["Reply", float]:
        """Send a request and return its reply, and the seconds that it took."""
        reply = Reply()
        if time.perf_counter() - self._used > self._idle:
            self.close()
            self._connect()
        begun = time.perf_counter()
        self.send(data)
        while not reply.whole:
            received = self._socket.recv(READ_BYTES)
            if not received:
                raise ConnectionError("the server closed the connection before it had answered")
            reply.feed(received)
        self._used = time.perf_counter()
        return reply, self._used - begun

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def written(host: str, model: str, body: Body) -> bytes:
    """Return the bytes of a request for a model."""
    headers = {"Host": host, "Content-Length": str(len(body.data)), **body.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\n{lines}\r\n".encode() + body.data


def answered(reply: "Reply | Received", seconds: float) -> Answered:
    """Read a reply to a request for a model."""
    length, timing = (reply.headers.get(name) for name in (HEADER_LENGTH.lower(), "server-timing"))
    return decode(reply.status, length, bytes(reply.data), seconds, timing=timing)


@dataclass(frozen=True, slots=True)
class Received:
    """An HTTP response; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Reply:
    """An HTTP response while it arrives; the next one over the same connection replaces it."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.data = bytearray()
        self.whole = False
        self.parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        """The status code."""
        return int(self.parser.get_status_code())

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self.headers, self.data, self.whole = {}, bytearray(), False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.data += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.whole = True


class Connection(Reply, asyncio.Protocol):
    """A connection of an asyncio loop. A reply beyond the awaited one is reported to `surplus`."""

    def __init__(self, surplus: Callable[[str], None]) -> None:
        super().__init__()
        self._surplus = surplus
        self._waiting: asyncio.Future[Received] | None = None
        self.transport: Any = None

    def ask(self, data: bytes) -> "asyncio.Future[Received]":
        """Send a request.

        Raises `ConnectionError` if the connection is closed before the reply, `HttpParserError` if it is not HTTP.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self.feed(data)
        except httptools.HttpParserError as error:
            if self._waiting is None or self._waiting.done():
                self._surplus(f"something that is not HTTP ({error})")
            self._fail(error)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._fail(ConnectionError(f"the server closed the connection ({exc or 'without a word'})"))

    def on_message_complete(self) -> None:
        """Called by the parser."""
        super().on_message_complete()
        if not self.parser.should_keep_alive():
            self.transport.close()
        if self._waiting is None or (self._waiting.done() and not self._waiting.cancelled()):
            self._surplus(f"a reply {self.status} that nobody asked for: {bytes(self.data[:100])!r}")
        elif not self._waiting.done():
            self._waiting.set_result(Received(self.status, self.headers, bytes(self.data)))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class Connections:
    """Kept-open connections to a server, with one request at a time on each."""

    def __init__(self, url: str, *, idle: float = IDLE, surplus: Callable[[str], None] = lambda what: None) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self._place = parts.hostname or "", parts.port or 80
        self._seconds, self._surplus = idle, surplus
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._idle: deque[tuple[float, Connection]] = deque()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Connection]:
        """Yield a connection for exclusive use. It is closed if the block raises, else kept for the next request.

        Raises `OSError` if none can be made.
        """
        loop = asyncio.get_running_loop()
        async with self._free:
            while self._idle:
                since, connection = self._idle.pop()
                if not connection.transport.is_closing() and loop.time() - since < self._seconds:
                    break
                connection.transport.close()
            else:
                _, connection = await loop.create_connection(lambda: Connection(self._surplus), *self._place)
            try:
                yield connection
            except BaseException:
                connection.transport.close()
                raise
            if not connection.transport.is_closing():
                self._idle.append((loop.time(), connection))

    def close(self) -> None:
        """Close those that are not in use."""
        for _, connection in self._idle:
            connection.transport.close()


def poisson(rate: float, random: Random) -> Iterator[float]:
    """Yield arrival times in seconds, `rate` a second on average, without end."""
    time = 0.0
    while True:
        time += random.expovariate(rate)
        yield time


def past(seconds: float, rate: float, random: Random) -> list[float]:
    """Return Poisson times up to and including the first one after `seconds`."""
    found, times = [0.0], poisson(rate, random)
    while found[-1] < seconds:
        found.append(next(times))
    return found[1:]


async def poisson_load(url: str, model: str, bodies: Sequence[Body], *, rate: float, seed: int) -> list[Answered]:
    """Send `bodies` at `rate` a second with exponential gaps, never waiting for answers; one answer for each.

    Seconds count from the time at which a request was meant to be sent, so a late sender makes no latency shorter.
    """
    random, there = Random(seed), Connections(url)
    due = time.perf_counter() + 0.1
    tasks: list[asyncio.Task[Answered]] = []

    async def send(body: Body, due: float) -> Answered:
        async with there.one() as connection:
            reply = await connection.ask(written(there.host, model, body))
            return answered(reply, time.perf_counter() - due)

    try:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                due += random.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(group.create_task(send(body, due)))
    finally:
        there.close()
    return [task.result() for task in tasks]
