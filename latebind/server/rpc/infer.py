"""`ModelInfer` and `ModelStreamInfer`: turns a request into a call, and its answer into responses."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from latebind.domain.errors import LatebindError, Unavailable
from latebind.domain.model import ModelSpec
from latebind.server.calls import WAITED_HEADER, Call, with_time_waited
from latebind.server.gateway import Answer as Piece
from latebind.server.gateway import Array
from latebind.server.rpc.codec import RpcCodec, parameter
from latebind.server.rpc.context import Caller, Context, Streaming
from latebind.server.rpc.faults import status_and_message
from latebind.server.rpc.messages import Message, ModelStreamInferResponse
from latebind.server.rpc.wire import Raw, in_stream, read_request

END = None  # in a stream's queue: no more requests
STATUSES = "triton_grpc_error"  # metadata: errors end a stream with their status
TRACEPARENT = "traceparent"  # metadata: the caller's span, as in W3C Trace Context
STREAM = "stream"  # parameter: the tokens of a sequence are wanted as they are written
STREAM_KEY = b"\n\x06stream"  # in a serialised request that has this parameter
FINAL_WANTED, FINAL = "triton_enable_empty_final_response", "triton_final_response"  # parameters

Answer = asyncio.Task[bytes | None]
Infer = Callable[[Context, bytes, Caller], Awaitable[bytes]]
InferPieces = Callable[[Context, Message, Raw, Caller], AsyncGenerator[bytes]]


async def infer(context: Context, data: bytes, caller: Caller) -> bytes:
    """Answer one call."""
    request, raw = read_request(data, context.limits)
    version, parent = request.model_version or None, caller.header(TRACEPARENT)
    codec, call = _decode(context, request, raw, caller)
    filled, address = partial(fill, call), caller.address()
    answer = await context.service.infer(codec.spec, call, filled, client=address, version=version, parent=parent)
    reply_parameters = context.service.reply_parameters
    if request.parameters and (_is_set(request, FINAL_WANTED) or _is_set(request, STREAM)):
        return codec.encode(answer, call, lambda spec, answer: {**reply_parameters(spec, answer), FINAL: True})
    return codec.encode(answer, call, reply_parameters)


async def infer_pieces(context: Context, request: Message, raw: Raw, caller: Caller) -> AsyncGenerator[bytes]:
    """Answer one call with a response for each piece of its answer."""
    version, parent = request.model_version or None, caller.header(TRACEPARENT)
    codec, call = _decode(context, request, raw, caller)
    pieces = context.service.stream(codec.spec, call, partial(fill, call), version=version, parent=parent)
    async with aclosing(pieces):
        async for piece in pieces:
            yield codec.encode(piece, call, partial(_piece_parameters, context))


def _piece_parameters(context: Context, spec: ModelSpec, piece: Piece) -> dict[str, object]:
    """Return the parameters of a response in pieces: whether it is the last one, and what that one tells."""
    about = context.service.reply_parameters(spec, piece) if piece.complete else {}
    return {**about, FINAL: piece.complete}


def _decode(context: Context, request: Message, raw: Raw, caller: Caller) -> tuple[RpcCodec, Call]:
    codec = context.codec(context.service.model(request.model_name, request.model_version or None))
    call = codec.decode(request, raw, caller.seconds())
    return codec, with_time_waited(call, caller.header(WAITED_HEADER.decode()))


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

    The answer to a call that asks for tokens as they are written comes in pieces, between the answers to others. An
    error is sent as a response or, if the client wants that, ends the stream with its status. `one` answers each call,
    `pieces` those whose answer comes in pieces; without it, such an answer is one piece.
    """

    def __init__(
        self, context: Context, caller: Streaming, one: Infer = infer, pieces: InferPieces | None = infer_pieces
    ) -> None:
        self._infer = one
        self._pieces = pieces
        self._writing = asyncio.Lock()
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
                if (response := await answer) is not None:
                    await self._write(response)
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

    async def _answer(self, data: bytes) -> bytes | None:
        """Return the response to a call; None if its responses were written already."""
        try:
            if self._pieces is not None and STREAM_KEY in data:
                request, raw = read_request(data, self._context.limits)
                if _is_set(request, STREAM):
                    await self._write_pieces(self._pieces(self._context, request, raw, self._caller))
                    return None
            return in_stream(await self._infer(self._context, data, self._caller))
        except Exception as error:  # the root of a task: the client is told, the others go on
            if self._statuses:
                raise
            return self._refusal(data, error)

    async def _write_pieces(self, pieces: AsyncGenerator[bytes]) -> None:
        async with aclosing(pieces):
            async for piece in pieces:
                await self._write(in_stream(piece))

    async def _write(self, response: bytes) -> None:
        async with self._writing:
            await self._caller.write(response)

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
