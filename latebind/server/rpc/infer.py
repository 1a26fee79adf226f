"""`ModelInfer` and `ModelStreamInfer`: turns a request into a call, and its answer into a response."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from latebind.domain.errors import LatebindError, Unavailable
from latebind.server.calls import WAITED_HEADER, Call, with_time_waited
from latebind.server.gateway import Array
from latebind.server.rpc.codec import parameter
from latebind.server.rpc.context import Caller, Context, Streaming
from latebind.server.rpc.faults import status_and_message
from latebind.server.rpc.messages import Message, ModelStreamInferResponse
from latebind.server.rpc.wire import in_stream, read_request

END = None  # in a stream's queue: no more requests
STATUSES = "triton_grpc_error"  # metadata: errors end a stream with their status
TRACEPARENT = "traceparent"  # metadata: the caller's span, as in W3C Trace Context
FINAL_WANTED, FINAL = "triton_enable_empty_final_response", "triton_final_response"  # parameters

Answer = asyncio.Task[bytes]
Infer = Callable[[Context, bytes, Caller], Awaitable[bytes]]


async def infer(context: Context, data: bytes, caller: Caller) -> bytes:
    """Answer one call."""
    request, raw = read_request(data, context.limits)
    version = request.model_version or None
    spec = context.service.model(request.model_name, version)
    codec = context.codec(spec)
    call = with_time_waited(codec.decode(request, raw, caller.seconds()), caller.header(WAITED_HEADER.decode()))
    filled, address = partial(fill, call), caller.address()
    parent = caller.header(TRACEPARENT)
    answer = await context.service.infer(spec, call, filled, client=address, version=version, parent=parent)
    reply_parameters = context.service.reply_parameters
    if request.parameters and _is_set(request, FINAL_WANTED):
        return codec.encode(answer, call, lambda spec, answer: {**reply_parameters(spec, answer), FINAL: True})
    return codec.encode(answer, call, reply_parameters)


async def fill(call: Call, rows: Mapping[str, Sequence[Array]]) -> None:
    """Write the inputs into `rows`, those of a claim. Raises `InvalidRequest` for shared memory that cannot be used."""
    for given in call.inputs:
        places = given.places(rows)
        if given.place is None:
            given.write(places)
        else:
            await given.place.read_into(places)
            given.tensor.check(places)


class InferStream:
    """One stream of infer calls: at most `Limits.stream_calls` run at once, and are answered in order.

    An error is sent as a response or, if the client wants that, ends the stream with its status. `one` answers each
    call.
    """

    def __init__(self, context: Context, caller: Streaming, one: Infer = infer) -> None:
        self._infer = one
        self._context = context
        self._caller = caller
        self._statuses = caller.header(STATUSES) in ("true", "True", "1")
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._places = asyncio.Semaphore(context.limits.stream_calls)
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: self._answers.put_nowait(END))
        self._ended = False

    async def serve(self) -> None:
        """Return when the client has all its answers. Raises `Unavailable` if the door closed before."""
        try:
            while (answer := await self._answers.get()) is not END:
                await self._caller.write(await answer)
                self._places.release()
        finally:
            await self._forget()
        if self._ended:
            raise Unavailable("the server is shutting down: ask another one")

    def end(self) -> None:
        """Take no more requests; those that were taken are answered."""
        self._ended = True
        self._reader.cancel()

    async def _read(self) -> None:
        """Start calls as requests arrive."""
        await self._places.acquire()
        while (data := await self._caller.read()) is not None:
            self._answers.put_nowait(asyncio.create_task(self._answer(data)))
            await self._places.acquire()

    async def _answer(self, data: bytes) -> bytes:
        try:
            return in_stream(await self._infer(self._context, data, self._caller))
        except Exception as error:  # the root of a task: the client is told, the others go on
            if self._statuses:
                raise
            return self._refusal(data, error)

    def _refusal(self, data: bytes, error: Exception) -> bytes:
        reply = ModelStreamInferResponse(error_message=status_and_message(error)[1])
        with suppress(LatebindError):  # of what is no request there is no id
            request, _ = read_request(data, self._context.limits)
            reply.infer_response.id = request.id
            reply.infer_response.model_name = request.model_name
        written: bytes = reply.SerializeToString()
        return written

    async def _forget(self) -> None:
        """Cancel what is left after the client has gone or an error has ended the stream."""
        left: list[asyncio.Task[Any]] = [self._reader]
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if answer is not END:
                left.append(answer)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _is_set(request: Message, name: str) -> bool:
    return name in request.parameters and parameter(request.parameters[name]) is True
