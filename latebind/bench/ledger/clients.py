"""The ledger's clients for HTTP and gRPC: they send requests and record in the ledger what became of each."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from functools import cache
from itertools import cycle
from typing import Any

import httptools
import numpy as np
import orjson

from latebind.bench.client import DATATYPES, HEADER_LENGTH, NUMPY_TYPES
from latebind.bench.ledger.books import Answer, End, Ledger
from latebind.bench.ledger.questions import KINDS, Manner, Protocol, Question

CONNECTIONS, CHANNELS = 512, 4  # a request that finds no connection free waits for one, and its seconds count
IDLE_SECONDS = 1.0  # a server may close an idle connection at any time: one that lay longer is not used again
HTTP_ENDS = {429: End.REFUSED, 503: End.REFUSED, 504: End.EXPIRED}
GRPC_ENDS = {"RESOURCE_EXHAUSTED": End.REFUSED, "UNAVAILABLE": End.REFUSED, "DEADLINE_EXCEEDED": End.EXPIRED}
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class Client(ABC):
    """Makes each call in a task of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Task[None]] = {}

    def send(self, question: Question) -> None:
        """Send a request; its client hangs up on it where it is one that does."""
        number = question.number
        self._calls[number] = task = self._loop.create_task(self._ask(question))
        task.add_done_callback(lambda _: self._calls.pop(number, None))
        if question.manner is Manner.LEAVES:
            self._loop.call_later(question.leaves, self._leave, number)

    def give_up(self, numbers: set[int]) -> None:
        """Hang up on these requests."""
        for number in numbers & self._calls.keys():
            self._calls[number].cancel()

    async def close(self) -> None:
        """Hang up on all requests and close all connections."""
        calls = list(self._calls.values())
        self.give_up(set(self._calls))
        await asyncio.gather(*calls, return_exceptions=True)

    def _leave(self, number: int) -> None:
        if number in self._calls:
            self.ledger.leave(number, self._loop.time())
            self._calls[number].cancel()

    @abstractmethod
    async def _ask(self, question: Question) -> None:
        """Make one call and record its end. If it is cancelled, it hangs up and records nothing."""


class HttpClient(Client):
    """Keeps connections open, with one request at a time on each."""

    def __init__(self, host: str, port: int, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._host, self._port = host, port
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._idle: deque[tuple[float, Connection]] = deque()

    async def close(self) -> None:
        """Hang up on all requests and close all connections."""
        await super().close()
        for _, connection in self._idle:
            connection.transport.close()

    async def _ask(self, question: Question) -> None:
        data, head = http_request(question, f"{self._host}:{self._port}")
        number = question.number
        async with self._places:
            try:
                connection = await self._connected()
            except OSError as error:
                self.ledger.lose(number, f"no connection ({error})")
                return
            if question.manner is Manner.BREAKS_OFF:
                connection.transport.write(data[: (head + len(data)) // 2])
                connection.transport.close()
                self.ledger.leave(number, self._loop.time())
                return
            try:
                status, json_bytes, body = await connection.ask(data)
            except ConnectionError as error:
                self.ledger.lose(number, f"the server closed the connection ({error})")
                return
            except httptools.HttpParserError as error:
                self.ledger.fail(number, f"something that is no HTTP ({error})", self._loop.time())
                return
            except asyncio.CancelledError:
                connection.transport.close()
                raise
            now = self._loop.time()
            if status == 200:
                self.ledger.answer(number, http_answer(question, json_bytes, body), now)
            elif status in HTTP_ENDS:
                self.ledger.refuse(number, HTTP_ENDS[status], now)
            else:
                self.ledger.fail(number, f"{status}: {_http_error(body)}", now)
            if not connection.transport.is_closing():
                self._idle.append((now, connection))

    async def _connected(self) -> "Connection":
        while self._idle:
            since, connection = self._idle.pop()
            if not connection.transport.is_closing() and self._loop.time() - since < IDLE_SECONDS:
                return connection
            connection.transport.close()
        _, made = await self._loop.create_connection(lambda: Connection(self.ledger), self._host, self._port)
        return made


class Connection(asyncio.Protocol):
    """One connection, and the answer that is waited for. What comes beyond that is recorded: nobody asked for it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._answer: asyncio.Future[tuple[int, int | None, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._json_bytes: int | None = None
        self.transport: Any = None

    def ask(self, data: bytes) -> "asyncio.Future[tuple[int, int | None, bytes]]":
        """Send a request; the answer is its status, the bytes of JSON before binary data, if any, and its body.

        `ConnectionError` is raised if the connection is closed before, `HttpParserError` for what is no HTTP.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is None or self._answer.done():
                self._ledger.surplus(f"something that is no HTTP ({error})")
            self._fail(error)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._fail(ConnectionError(str(exc or "without a word")))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._body.clear()
        self._json_bytes = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.decode().lower() == HEADER_LENGTH.lower():
            self._json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        status, body = self._parser.get_status_code(), bytes(self._body)
        if not self._parser.should_keep_alive():
            self.transport.close()
        if self._answer is None or (self._answer.done() and not self._answer.cancelled()):
            self._ledger.surplus(f"a reply {status} that nobody asked for: {body[:100]!r}")
        elif not self._answer.done():
            self._answer.set_result((status, self._json_bytes, body))


class RpcClient(Client):
    """Makes calls over a few connections."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        import grpc.aio  # noqa: PLC0415  (grpc is optional)

        super().__init__(ledger)
        options = [("grpc.use_local_subchannel_pool", 1)]  # else all would share one connection
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self._methods = cycle([channel.unary_unary(GRPC_METHOD) for channel in self._channels])
        self._error = grpc.aio.AioRpcError

    async def close(self) -> None:
        """Hang up on all requests and close all connections."""
        await super().close()
        for channel in self._channels:
            await channel.close()

    async def _ask(self, question: Question) -> None:
        call = next(self._methods)(grpc_request(question))
        try:
            data = await call
        except asyncio.CancelledError:
            call.cancel()
            raise
        except self._error as error:
            code, now = error.code().name, self._loop.time()
            if code in GRPC_ENDS:
                self.ledger.refuse(question.number, GRPC_ENDS[code], now)
            else:
                self.ledger.fail(question.number, f"{code}: {error.details()}", now)
        else:
            self.ledger.answer(question.number, grpc_answer(question, data), self._loop.time())


def http_request(question: Question, host: str) -> tuple[bytes, int]:
    """Return the bytes of a request, and how many of them are its head."""
    kind, rows = KINDS[question.model], question.rows
    tensor: dict[str, object] = {"name": kind.input, "shape": list(rows.shape), "datatype": DATATYPES[kind.dtype]}
    parameters: dict[str, object] = {"timeout": round(question.deadline * 1e6), "priority": question.priority}
    binary = question.protocol is Protocol.BINARY
    if binary:
        tensor["parameters"] = {"binary_data_size": rows.nbytes}
        parameters["binary_data_output"] = True
    else:
        tensor["data"] = rows.ravel().tolist()
    text = orjson.dumps({"id": str(question.number), "inputs": [tensor], "parameters": parameters})
    body, length = (text + rows.tobytes(), f"{HEADER_LENGTH}: {len(text)}\r\n") if binary else (text, "")
    path = f"POST /v2/models/{question.model}/infer HTTP/1.1"
    head = f"{path}\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n{length}\r\n".encode()
    return head + body, len(head)


def http_answer(question: Question, json_bytes: int | None, body: bytes) -> Answer:
    """Return the decoded body of a reply; an answer that cannot be read has no rows."""
    try:
        reply, start = orjson.loads(body[:json_bytes]), json_bytes or 0
        for tensor in reply["outputs"]:
            dtype = NUMPY_TYPES[tensor["datatype"]]
            size = tensor.get("parameters", {}).get("binary_data_size", 0)
            if tensor["name"] == KINDS[question.model].output:
                flat = np.frombuffer(body[start : start + size], dtype) if size else np.array(tensor["data"], dtype)
                return Answer(reply["id"], flat.reshape(tensor["shape"]))
            start += size
    except (AttributeError, KeyError, TypeError, ValueError):  # JSON of any form
        pass
    return Answer("", None)


def _http_error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:100])


@cache
def _messages() -> Any:
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  (grpc is optional)

    return service_pb2


def grpc_request(question: Question) -> bytes:
    """Return the message of a request."""
    kind, rows = KINDS[question.model], question.rows
    message = _messages().ModelInferRequest(
        model_name=question.model, id=str(question.number), raw_input_contents=[rows.tobytes()]
    )
    message.inputs.add(name=kind.input, datatype=DATATYPES[kind.dtype], shape=rows.shape)
    message.parameters["timeout"].int64_param = round(question.deadline * 1e6)
    message.parameters["priority"].uint64_param = question.priority
    data: bytes = message.SerializeToString()
    return data


def grpc_answer(question: Question, data: bytes) -> Answer:
    """Return the decoded reply; an answer without the output has no rows."""
    message = _messages().ModelInferResponse.FromString(data)
    for tensor, raw in zip(message.outputs, message.raw_output_contents, strict=False):
        dtype = NUMPY_TYPES[tensor.datatype]
        if tensor.name == KINDS[question.model].output and len(raw) == np.prod(tensor.shape) * dtype.itemsize:
            return Answer(message.id, np.frombuffer(raw, dtype).reshape(tuple(tensor.shape)))
    return Answer(message.id, None)
