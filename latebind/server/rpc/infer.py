"""The gRPC verbs that run a model: a message becomes a call, its rows go to their slots, and the answer a message.

Protobuf is read and written by hand where that avoids copies of tensors: raw contents are cut out of a large message or
appended to one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from math import inf
from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson

from latebind.domain.errors import Expired, InvalidRequest, LatebindError, TooLarge, Unavailable
from latebind.domain.model import ModelSpec
from latebind.preprocessing.preprocessor import Raw as Element
from latebind.server.calls import (
    LENGTH_BYTES,
    WAITED_HEADER,
    Call,
    CallInput,
    Calls,
    RawElements,
    Tensor,
    check_schedule,
    elements_of,
    with_time_waited,
)
from latebind.server.described import LONGEST_ID, OutputParameters, RequestedOutput, RequestParameters, TensorParameters
from latebind.server.faults import for_clients
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits
from latebind.server.results import result
from latebind.server.rpc.messages import DecodeError, Message, grpc, service_pb2
from latebind.server.service import Service
from latebind.server.shared_memory import Regions

Raw = Sequence[bytes | memoryview]
T = TypeVar("T")

END = None  # in a stream's queue: no more requests
STATUSES = "triton_grpc_error"  # metadata: errors end a stream with their status
TRACEPARENT = "traceparent"  # metadata: the caller's span, as in W3C Trace Context
STREAM = "stream"  # parameter: the tokens of a sequence are wanted as they are written
STREAM_KEY = b"\n\x06stream"  # in a serialized request that has this parameter
FINAL_WANTED, FINAL = "triton_enable_empty_final_response", "triton_final_response"  # parameters
MOST_CHARACTERS = 1000  # of an error's message, which is sent as a header, whose size clients limit
MOST_DIMENSIONS = 64
MICROSECONDS = 1e6

# datatype -> the field of InferTensorContents with its values; other datatypes come as raw contents only
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}

RAW_INPUT = 7 << 3 | 2  # ModelInferRequest.raw_input_contents
INFER_RESPONSE = b"\x12"  # ModelStreamInferResponse.infer_response, field 2
SMALL = 1 << 16  # up to this size protobuf's own parser is faster, and its result cannot be large
MOST_FIELDS = 4096


class Caller:
    """The client's end of one call of gRPC's server."""

    __slots__ = ("_context", "_headers")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._headers: dict[str, str] | None = None

    def seconds(self) -> float | None:
        """Return how long the client still waits; None without a deadline."""
        left: float | None = self._context.time_remaining()
        return left

    def header(self, name: str) -> str:
        """Return the metadata of this lower-case name, several values joined by commas; "" if there is none."""
        if self._headers is None:  # read once: gRPC makes new texts of all of them each time
            self._headers = {}
            for key, value in self._context.invocation_metadata():
                before = self._headers.get(key)
                self._headers[key] = str(value) if before is None else f"{before}, {value}"
        return self._headers.get(name, "")

    async def read(self) -> bytes | None:
        """Return the next request of a stream, None after the last."""
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, reply: bytes) -> None:
        """Send the next response of a stream. If nobody takes it any more, the call is cancelled."""
        try:
            await self._context.write(reply)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None


class Context:
    """The context of one server's verbs. It has a codec for each model."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service = service
        self.limits = limits
        self.codecs: dict[str, RpcCodec] = {}


Infer = Callable[[Context, bytes, Caller], Awaitable[bytes]]
InferPieces = Callable[[Context, Message, Raw, Caller], AsyncGenerator[bytes]]
Answering = asyncio.Task[bytes | None]


# The verbs ------------------------------------------------------------------------------------------------------------


async def infer(context: Context, data: bytes, caller: Caller) -> bytes:
    """Answer one call."""
    request, raw = read_request(data, context.limits)
    version = request.model_version or None
    codec, call = _decode(context, request, raw, caller)
    service, parent = context.service, caller.header(TRACEPARENT)
    if call.raw:
        answer, rows = await service.infer_raw(codec.spec, call, _elements(call), version, parent)
        parameters = {**service.reply_parameters(codec.spec, answer), **service.reading_parameters(codec.spec, rows)}
    else:
        answer = await service.infer(codec.spec, call, partial(_fill, call), version, parent)
        parameters = service.reply_parameters(codec.spec, answer)
    if request.parameters and (_is_set(request, FINAL_WANTED) or _is_set(request, STREAM)):
        parameters = {**parameters, FINAL: True}
    return codec.encode(answer, call, parameters)


async def infer_pieces(context: Context, request: Message, raw: Raw, caller: Caller) -> AsyncGenerator[bytes]:
    """Answer one call with a response for each piece of its answer."""
    version, parent = request.model_version or None, caller.header(TRACEPARENT)
    codec, call = _decode(context, request, raw, caller)
    read: dict[str, object] = {}
    if call.raw:
        call, rows = await context.service.prepared(codec.spec, call, _elements(call))
        read = context.service.reading_parameters(codec.spec, rows)
    pieces = context.service.stream(codec.spec, call, partial(_fill, call), version=version, parent=parent)
    async with aclosing(pieces):
        async for piece in pieces:
            about = {**context.service.reply_parameters(codec.spec, piece), **read} if piece.complete else {}
            yield codec.encode(piece, call, {**about, FINAL: piece.complete})


def _decode(context: Context, request: Message, raw: Raw, caller: Caller) -> tuple["RpcCodec", Call]:
    service = context.service
    key = caller.header(service.split_by.decode()) if service.splits and service.split_by else ""
    spec = service.chosen(request.model_name, request.model_version or None, key)
    codec = context.codecs.get(spec.name)
    if codec is None or codec.spec is not spec:  # the version that is served now
        codec = context.codecs[spec.name] = RpcCodec(spec, context.limits, context.service.regions)
    call = codec.decode(request, raw, caller.seconds())
    return codec, with_time_waited(call, caller.header(WAITED_HEADER.decode()))


def _elements(call: Call) -> dict[str, Sequence[Element]]:
    """Return the elements of a call's raw inputs."""
    return {one.input.name: one.elements or () for one in call.raw}


async def _fill(call: Call, rows: Mapping[str, Sequence[Array]]) -> None:
    """Write the inputs into `rows`, those of a claim. Raises `InvalidRequest` for shared memory that cannot be used."""
    for given in call.inputs:
        places = rows[given.tensor.name]
        if given.place is None:
            assert given.rows is not None, "nothing follows"
            for place, row in zip(places, given.rows, strict=True):
                place[...] = row
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
        self, context: Context, caller: Caller, one: Infer = infer, pieces: InferPieces | None = infer_pieces
    ) -> None:
        self._infer = one
        self._pieces = pieces
        self._writing = asyncio.Lock()
        self._context = context
        self._caller = caller
        self._statuses = caller.header(STATUSES) in ("true", "True", "1")
        self._answers: asyncio.Queue[Answering | None] = asyncio.Queue()
        self._places = asyncio.Semaphore(context.limits.stream_calls)
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: self._answers.put_nowait(END))
        self._ended = False

    async def serve(self) -> None:
        """Return when the client has all its answers. Raises `Unavailable` if the frontend closed before."""
        try:
            while (answer := await self._answers.get()) is not END:
                if (response := await answer) is not None:
                    await self._write(response)
                self._places.release()
        finally:  # what is left after the client has gone or an error has ended the stream
            queued = [self._answers.get_nowait() for _ in range(self._answers.qsize())]
            left = [self._reader, *(answer for answer in queued if answer is not END)]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._ended:
            raise Unavailable("the server is shutting down: use another one")

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
                    async with aclosing(self._pieces(self._context, request, raw, self._caller)) as pieces:
                        async for piece in pieces:
                            await self._write(in_stream(piece))
                    return None
            return in_stream(await self._infer(self._context, data, self._caller))
        except Exception as error:  # the root of a task: the client gets the error, other calls go on
            if self._statuses:
                raise
            return self._refusal(data, error)

    async def _write(self, response: bytes) -> None:
        async with self._writing:
            await self._caller.write(response)

    def _refusal(self, data: bytes, error: Exception) -> bytes:
        reply = service_pb2.ModelStreamInferResponse(error_message=status_and_message(error)[1])
        with suppress(LatebindError):  # an invalid request has no id
            request, _ = read_request(data, self._context.limits)
            reply.infer_response.id = request.id
            reply.infer_response.model_name = request.model_name
        written: bytes = reply.SerializeToString()
        return written


def _is_set(request: Message, name: str) -> bool:
    return name in request.parameters and parameter(request.parameters[name]) is True


def status_and_message(error: Exception) -> tuple[str, str]:
    """Return the name of the status and the message; errors not meant for clients are logged instead."""
    shown = for_clients(error)
    return shown.grpc_status, str(shown)[:MOST_CHARACTERS]


# From a message to a call, and back -----------------------------------------------------------------------------------


class RpcCodec:
    """Translates the infer calls of one model. Raises `InvalidRequest` before anything is copied."""

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self.public_name = spec.public_name
        self._calls = Calls(spec, limits, regions)

    def decode(self, request: Message, raw: Raw, seconds: float | None = None) -> Call:
        """Return the call of a request with these raw contents; `seconds` is how long its client still waits.

        None stands for a client without a deadline. Raises `Expired` if the client no longer waits.
        """
        inputs, about = request.inputs, _parameters(request.parameters, RequestParameters)
        check_schedule(about.timeout, about.priority, about.sequence_id)
        outputs = [RequestedOutput(one.name, _parameters(one.parameters, OutputParameters)) for one in request.outputs]
        wanted = self._calls.wanted(outputs, binary=True)
        for one in inputs:
            if len(one.shape) > MOST_DIMENSIONS:
                most = f"{MOST_DIMENSIONS} at most"
                raise InvalidRequest(f"input {one.name!r:.100} has {len(one.shape)} dimensions: {most}")
        if len(request.id) > LONGEST_ID:
            raise InvalidRequest(f"the id of the request has {len(request.id)} letters: {LONGEST_ID} at most")
        schedule = request.id, sooner(about.timeout, seconds), about.priority
        if self._calls.raw and self._calls.has_raw([(one.name, one.datatype) for one in inputs]):
            elements, rows = self._raw(inputs, raw)
            return Call((), rows, wanted, 0, *schedule, raw=elements, truncate=about.truncate)
        tensors, rows, dims = self._calls.match((one.name, one.datatype, one.shape) for one in inputs)
        contents = iter(raw) if raw else None
        given = tuple([self._given(tensor, one, contents) for tensor, one in zip(tensors, inputs, strict=True)])
        if contents is not None and next(contents, None) is not None:
            raise InvalidRequest(f"raw_input_contents has {len(raw)} entries: more than there are inputs")
        return Call(given, rows, wanted, 0, *schedule, dims=dims)

    def encode(self, answer: Answer, call: Call, parameters: Mapping[str, object]) -> bytes:
        """Return the serialized response with these `parameters` and the outputs that the client wants."""
        spec = answer.spec or self.spec
        reply = service_pb2.ModelInferResponse(model_name=self.public_name, model_version=spec.version, id=call.id)
        for key, value in parameters.items():
            _set_parameter(reply.parameters[key], value)
        for wanted in call.wanted:
            found = result(wanted, answer)
            reply.outputs.add(name=wanted.tensor.name, datatype=found.datatype, shape=found.shape)
            if wanted.place is not None:
                wanted.place.write(found.raw())
            # Clients expect an entry for each output.
            reply.raw_output_contents.append(b"" if wanted.place is not None else found.raw().tobytes())
        written: bytes = reply.SerializeToString()
        return written

    def _raw(self, inputs: Sequence[Message], contents: Raw) -> tuple[tuple[RawElements, ...], int]:
        """Return raw inputs with their elements, of typed or raw contents, and the number of rows."""
        found, rows = self._calls.match_raw([(one.name, one.datatype, tuple(one.shape)) for one in inputs])
        if any(_parameters(one.parameters, TensorParameters).reference() is not None for one in inputs):
            raise InvalidRequest("BYTES are not read from shared memory: send them in the call")
        if contents and len(contents) != len(inputs):
            raise InvalidRequest(f"raw_input_contents has {len(contents)} entries: there are {len(inputs)} inputs")
        self._calls.check_element_bytes(
            sum(map(len, contents)) - LENGTH_BYTES * rows * len(contents)
            if contents
            else sum(len(element) for one in inputs for element in one.contents.bytes_contents)
        )
        elements = []
        for place, (one, given) in enumerate(zip(found, inputs, strict=True)):
            if contents and given.HasField("contents"):
                raise InvalidRequest(f"input {one.name!r} has contents and raw_input_contents: send one of them")
            if contents:
                read = RawElements(one, rows).elements_in(contents[place])
            else:
                read = elements_of(one, list(given.contents.bytes_contents))
            if len(read) != rows:
                raise InvalidRequest(f"input {one.name!r} has {len(read)} bytes_contents: its shape needs {rows}")
            elements.append(RawElements(one, rows, read))
        return tuple(elements), rows

    def _given(self, tensor: Tensor, given: Message, contents: Iterator[bytes | memoryview] | None) -> CallInput:
        """Return an input: a view of the next raw contents, its typed contents, or its place in shared memory."""
        shape = tuple(given.shape)
        reference = _parameters(given.parameters, TensorParameters).reference() if given.parameters else None
        if reference is not None:
            if given.HasField("contents"):
                raise InvalidRequest(f"{tensor.title} has contents and a place in shared memory: send one of them")
            return CallInput(tensor, shape, place=self._calls.place(reference, tensor, shape))
        array = _typed(tensor, shape, given) if contents is None else _viewed(tensor, shape, given, contents)
        tensor.check((array,))
        return CallInput(tensor, shape, array)


def parameter(given: Message) -> object:
    """Return the value of a parameter, None if it has none."""
    kind = given.WhichOneof("parameter_choice")
    return None if kind is None else getattr(given, kind)


def _parameters(given: Mapping[str, Message], kind: type[T]) -> T:
    """Return parameters converted to this type; unknown ones are ignored. Raises `InvalidRequest`."""
    if not given:
        return kind()
    try:
        # Answers are always binary.
        values = {name: parameter(value) for name, value in given.items() if name != "binary_data"}
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a parameter is invalid: {error}") from None


def sooner(timeout: int, seconds: float | None) -> int:
    """Return the time-out in microseconds, at most the `seconds` that the client still waits."""
    if seconds is None:
        return timeout
    if seconds <= 0:
        raise Expired("the deadline of the call passed before it was read: allow more time")
    return max(1, int(min(timeout or inf, seconds * MICROSECONDS)))


def _viewed(tensor: Tensor, shape: tuple[int, ...], given: Message, contents: Iterator[bytes | memoryview]) -> Array:
    """Return an input as a view of its raw contents."""
    if given.HasField("contents"):
        raise InvalidRequest(f"{tensor.title} has contents and raw_input_contents: send one of them")
    content = next(contents, None)
    if content is None:
        raise InvalidRequest(f"{tensor.title} has no entry in raw_input_contents, though others have one")
    if len(content) != tensor.bytes_of(shape):
        needed = tensor.bytes_of(shape)
        raise InvalidRequest(f"{tensor.title} has {len(content)} bytes: its shape and datatype need {needed}")
    return np.frombuffer(content, tensor.dtype).reshape(shape)


def _typed(tensor: Tensor, shape: tuple[int, ...], given: Message) -> Array:
    """Return an input as an array of its typed contents."""
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequest(f"{tensor.title} is {tensor.datatype}, which has no contents: send raw_input_contents")
    values = getattr(given.contents, field)
    items = tensor.bytes_of(shape) // tensor.dtype.itemsize
    if len(values) != items:
        raise InvalidRequest(f"{tensor.title} has {len(values)} values in {field}: its shape needs {items}")
    try:
        return np.array(values[:], tensor.dtype).reshape(shape)
    except OverflowError as error:
        raise InvalidRequest(f"{tensor.title} has contents that are not {tensor.datatype}: {error}") from None


def _set_parameter(place: Message, value: object) -> None:
    """Write a parameter of a response; values without a protobuf form, such as lists, become JSON."""
    match value:
        case bool():
            place.bool_param = value
        case int():
            place.int64_param = value
        case float():
            place.double_param = value
        case str():
            place.string_param = value
        case _:
            place.string_param = orjson.dumps(value).decode()


# Protobuf by hand ----------------------------------------------------------------------------------------------------


def parse(kind: Message, data: bytes) -> Message:
    """Return the message of this class that `data` encode. Raises `InvalidRequest`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name}") from None


def read_request(data: bytes, limits: Limits) -> tuple[Message, Raw]:
    """Return an infer request and its raw contents; for a large request these are views of `data`, not copies.

    Raises `InvalidRequest`, and `TooLarge` if the rest of a large request has more bytes than JSON may have: the parser
    may take 40 times the bytes that it reads.
    """
    if len(data) <= SMALL:
        request = parse(service_pb2.ModelInferRequest, data)
        return request, request.raw_input_contents
    described, raw = split(data)
    if len(described) > limits.json_bytes:
        beside = f"the request has {len(described)} bytes beside raw_input_contents, more than {limits.json_bytes}"
        raise TooLarge(f"{beside}: send tensors in raw_input_contents")
    return parse(service_pb2.ModelInferRequest, described), raw


def split(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Return an infer request without its raw contents, and these contents. Raises `InvalidRequest`."""
    view = memoryview(data)
    described: list[memoryview] = []
    raw: list[memoryview] = []
    at = 0
    while at < len(data):
        begun = at
        tag, at = _varint(data, at)
        content, at = _skip(data, at, tag & 7)
        if tag == RAW_INPUT:
            raw.append(view[content:at])
        else:
            described.append(view[begun:at])
        if at > len(data) or len(raw) + len(described) > MOST_FIELDS:
            raise _broken()
    return b"".join(described), raw


def in_stream(reply: bytes) -> bytes:
    """Return an infer response wrapped as the response of a stream."""
    return b"".join((INFER_RESPONSE, varint(len(reply)), reply))


def varint(number: int) -> bytes:
    """Return a number in protobuf's variable-length encoding."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _skip(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends."""
    match kind:
        case 0:
            return at, _varint(data, at)[1]
        case 1:
            return at, at + 8
        case 2:
            size, at = _varint(data, at)
            return at, at + size
        case 5:
            return at, at + 4
    raise _broken()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _broken()


def _broken() -> InvalidRequest:
    return InvalidRequest("the request is not a ModelInferRequest")
