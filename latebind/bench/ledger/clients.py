"""The ledger's clients for HTTP and gRPC: they send requests and record their outcomes in the ledger."""

import asyncio
import json
from abc import ABC, abstractmethod
from functools import cache
from itertools import cycle
from typing import Any

import httptools
import numpy as np

from latebind.bench.client import DATATYPES, NUMPY_TYPES, Body, Connections, Received, answered, encode, written
from latebind.bench.ledger.books import Answer, End, Ledger
from latebind.bench.ledger.questions import KINDS, Manner, Protocol, Question

CHANNELS = 4
IDLE_SECONDS = 1.0  # a server may close an idle connection at any time: one that lay longer is not used again
HTTP_ENDS = {429: End.REFUSED, 503: End.REFUSED, 504: End.EXPIRED}
GRPC_ENDS = {"RESOURCE_EXHAUSTED": End.REFUSED, "UNAVAILABLE": End.REFUSED, "DEADLINE_EXCEEDED": End.EXPIRED}
GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class Client(ABC):
    """Makes each call in a task of its own, and gives it up `patience` seconds past its deadline."""

    def __init__(self, ledger: Ledger, patience: float) -> None:
        self.ledger, self._patience = ledger, patience
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()

    def send(self, question: Question) -> None:
        """Send a request; its client hangs up on it where it is one that does."""
        task = self._loop.create_task(self._send(question))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Hang up on all requests and close all connections."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _send(self, question: Question) -> None:
        leaves = question.manner is Manner.LEAVES
        try:
            async with asyncio.timeout(question.leaves if leaves else question.deadline + self._patience):
                await self._ask(question)
        except TimeoutError:
            if leaves:
                self.ledger.leave(question.number, self._loop.time())
            else:
                self.ledger.lose(question.number, f"none came for {self._patience:g} s after its deadline")

    @abstractmethod
    async def _ask(self, question: Question) -> None:
        """Make one call and record its end. If it is cancelled, it hangs up and records nothing."""


class HttpClient(Client):
    """Makes each call over a kept-open connection."""

    def __init__(self, host: str, port: int, ledger: Ledger, patience: float) -> None:
        super().__init__(ledger, patience)
        self._connections = Connections(f"http://{host}:{port}", idle=IDLE_SECONDS, surplus=ledger.surplus)

    async def close(self) -> None:
        """Hang up on all requests and close all connections."""
        await super().close()
        self._connections.close()

    async def _ask(self, question: Question) -> None:
        number, body = question.number, http_body(question)
        data = written(self._connections.host, question.model, body)
        try:
            async with self._connections.one() as connection:
                if question.manner is Manner.BREAKS_OFF:
                    connection.transport.write(data[: -((len(body.data) + 1) // 2)])
                    connection.transport.close()
                    self.ledger.leave(number, self._loop.time())
                    return
                reply = await connection.ask(data)
        except OSError as error:
            self.ledger.lose(number, str(error))
        except httptools.HttpParserError as error:
            self.ledger.fail(number, f"something that is no HTTP ({error})", self._loop.time())
        else:
            now = self._loop.time()
            if reply.status == 200:
                self.ledger.answer(number, http_answer(question, reply), now)
            elif reply.status in HTTP_ENDS:
                self.ledger.refuse(number, HTTP_ENDS[reply.status], now)
            else:
                self.ledger.fail(number, f"{reply.status}: {_http_error(reply.data)}", now)


class RpcClient(Client):
    """Makes calls over a few connections."""

    def __init__(self, address: str, ledger: Ledger, patience: float) -> None:
        import grpc.aio  # noqa: PLC0415  (grpc is optional)

        super().__init__(ledger, patience)
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


def http_body(question: Question) -> Body:
    """Return a request in the form that its protocol has."""
    return encode(
        {KINDS[question.model].input: question.rows},
        timeout=question.deadline,
        binary=question.protocol is Protocol.BINARY,
        id=str(question.number),
        priority=question.priority,
    )


def http_answer(question: Question, reply: Received) -> Answer:
    """Return the decoded reply; an answer that cannot be read has no rows."""
    try:
        found = answered(reply, 0.0)
    except (AttributeError, KeyError, TypeError, ValueError):  # JSON of any form
        return Answer("", None)
    return Answer(found.identity, found.outputs.get(KINDS[question.model].output))  # type: ignore[arg-type]


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
