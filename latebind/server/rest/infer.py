"""The HTTP verbs that run a model: a body becomes a call, its data go to their slots, and the answer becomes a body.

`POST /v2/models/NAME[/versions/N]/infer` has JSON with binary data after it; `/generate` and `/generate_stream` have
one row in plain JSON. Their form is that of Triton's generate extension; here inputs and outputs are numbers. An output
has the shape of its row: a list even for one token, nested lists, or a single number if its shape is ().
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec
import numpy as np
import orjson

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import Media, ModelSpec
from latebind.preprocessing.preprocessor import Raw
from latebind.server.calls import (
    BYTES,
    LENGTH_BYTES,
    NESTED,
    WAITED_HEADER,
    Call,
    CallInput,
    CallOutput,
    Calls,
    RawElements,
    Tensor,
    check_schedule,
    elements_from_json,
    with_time_waited,
)
from latebind.server.dashboard import Dashboard
from latebind.server.described import (
    NO_DATA,
    NO_PARAMETERS,
    GenerateRequest,
    InferRequest,
    InputTensor,
    RequestParameters,
    read_generate,
)
from latebind.server.gateway import NO_DIMS, Answer, Array
from latebind.server.limits import Limits
from latebind.server.metrics import Machine
from latebind.server.rest.compression import SMALL, accepted, compressed
from latebind.server.rest.messages import JSON, Headers, Reply
from latebind.server.rest.protocol import Held, Request
from latebind.server.results import result
from latebind.server.service import Fill, Service
from latebind.server.shared_memory import Regions
from latebind.server.streaming import events

JSON_LENGTH: Final = b"inference-header-content-length"
TRACEPARENT: Final = b"traceparent"  # W3C Trace Context: the caller's span
# W3C Server Timing: how long the request waited and ran in the engine, in milliseconds.
TIMING: Final = b"server-timing: queue;dur=%.3f, compute;dur=%.3f\r\n"
JSON_LINES: Final = b"content-type: application/json\r\n" + TIMING
BINARY_LINES: Final = b"content-type: application/octet-stream\r\n" + TIMING + JSON_LENGTH + b": %d\r\n"
# No cache and no proxy may keep events back (the last header is nginx's).
EVENTS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
SHORT: Final = 1 << 12  # bytes of JSON
BASE64: Final = "base64"  # content type of an input whose strings are bytes
NUMBER: Final = re.compile(rb"[0-9]{1,18}")
NO_NUMBER: Final = re.compile(rb"[\[,:]\s*-?(?:NaN|Infinity)")


class Context:
    """The context of one server's verbs, whose paths begin with `prefix`. It has a codec for each model."""

    def __init__(
        self, service: Service, limits: Limits, dashboard: Dashboard | None = None, *, prefix: str = ""
    ) -> None:
        self.prefix = prefix
        self.service = service
        self.limits = limits
        self.dashboard = dashboard
        self.held = Held(limits.held_bytes)
        self.replies: Counter[int] = Counter()
        self.machine = Machine()
        self._codecs: dict[str, Codec] = {}

    def codec(self, spec: ModelSpec) -> "Codec":
        """Return the codec of the version of a model that is served now."""
        codec = self._codecs.get(spec.name)
        if codec is None or codec.spec is not spec:
            codec = self._codecs[spec.name] = Codec(spec, self.limits, self.service.regions)
        return codec


def requested_model(service: Service, request: Request) -> ModelSpec:
    """Return the model that is to answer a request, in the version that it names, or whose turn it is."""
    if not service.splits:
        return service.model(request.model, request.version)
    key = request.fields.get(service.split_by, b"") if service.split_by else b""
    return service.chosen(request.model, request.version, key.decode("latin-1"))


# The verbs ------------------------------------------------------------------------------------------------------------


async def infer(context: Context, request: Request) -> Reply:
    """Answer one call."""
    service, fields = context.service, request.fields
    spec = requested_model(service, request)
    codec = context.codec(spec)
    call = await read_call(codec, request)
    request.watch()
    if call.raw:
        given = await read_raw(codec, call, request)
        answer, rows = await service.infer_raw(spec, call, given, request.version, _parent(fields))
        parameters = {**service.reply_parameters(spec, answer), **service.reading_parameters(spec, rows)}
    else:
        answer = await service.infer(spec, call, partial(fill, call, request), request.version, _parent(fields))
        parameters = service.reply_parameters(spec, answer)
    waited, ran = service.milliseconds(answer)
    text, blobs = codec.encode(answer, call, parameters)
    if blobs:
        lines = BINARY_LINES % (waited, ran, len(text))
        text = b"".join((text, *blobs))
    else:
        lines = JSON_LINES % (waited, ran)
    if len(text) >= SMALL and (encoding := accepted(fields.get(b"accept-encoding"))) is not None:
        # Only infer replies are compressed: tritonclient's asynchronous client says that it accepts gzip, but does not
        # decompress other replies.
        smaller = await compressed(text, encoding)
        if smaller is not None:
            return Reply(smaller, lines=b"%bcontent-encoding: %b\r\nvary: accept-encoding\r\n" % (lines, encoding))
    return Reply(text, lines=lines)


async def generate(context: Context, request: Request) -> Reply:
    """Answer one call of one row with its whole answer."""
    codec, call, filled, about = await _read_row(context, request)
    answer = await context.service.infer(codec.spec, call, filled, request.version, _parent(request.fields))
    return Reply(codec.encode_row(answer, call, about), JSON)


async def generate_stream(context: Context, request: Request) -> Reply:
    """Answer one call of one row with an event for each piece of its answer.

    A failure before the first piece is an error as usual, a later one an event with an `error`.
    """
    codec, call, filled, about = await _read_row(context, request)
    pieces = context.service.stream(codec.spec, call, filled, version=request.version, parent=_parent(request.fields))
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return Reply(headers=EVENTS, pieces=events(partial(codec.encode_row, call=call, about=about), first, pieces))


def _parent(fields: Mapping[bytes, bytes]) -> str:
    return fields.get(TRACEPARENT, b"").decode("latin-1")


@lru_cache(256)
def _json_bytes(given: bytes | None) -> int | None:
    """Return the number in `Inference-Header-Content-Length`, None without that header."""
    if given is None:
        return None
    if not NUMBER.fullmatch(given):
        raise InvalidRequest("the header Inference-Header-Content-Length is not one number of bytes")
    return int(given)


# From a body to a call, and to slots ----------------------------------------------------------------------------------


async def read_call(codec: "Codec", request: Request) -> Call:
    """Read the call's description: the part of the body that is JSON according to the header, or all of it without one.

    Raises what reading and `Codec` raise.
    """
    json_bytes = _json_bytes(request.fields.get(JSON_LENGTH))
    if json_bytes is None:
        call = codec.decode(await request.read())
    elif json_bytes == 0:
        await request.available()  # a client gets no slots before it has sent anything
        call = codec.decode_raw(await request.measure())
    else:
        size = request.size
        codec.check_json_size(min(json_bytes, json_bytes if size is None else size))
        text = b"" if size is not None and json_bytes > size else await request.read(json_bytes)
        if len(text) < json_bytes:
            has = len(text) if size is None else size
            raise InvalidRequest(f"the JSON part has a stated length of {json_bytes} bytes, but the body has {has}")
        call = codec.decode(text, None if size is None else size - json_bytes)
    return with_time_waited(call, request.fields.get(WAITED_HEADER))


async def _read_row(context: Context, request: Request) -> tuple["Codec", Call, Fill, dict[str, object]]:
    """Read a call of one row; return also the reply's parameters about a text that was read for it."""
    codec = context.codec(requested_model(context.service, request))
    call = with_time_waited(codec.decode_row(await request.read()), request.fields.get(WAITED_HEADER))
    request.watch()
    about: dict[str, object] = {}
    if call.raw:
        given = await read_raw(codec, call, request)
        call, rows = await context.service.prepared(codec.spec, call, given)
        about = context.service.reading_parameters(codec.spec, rows)
    request.release()
    return codec, call, partial(fill, call, request), about


async def read_raw(codec: "Codec", call: Call, request: Request) -> dict[str, Sequence[Raw]]:
    """Return the elements of a call's raw inputs, those that follow its JSON too. Raises `InvalidRequest`."""
    codec.calls.check_element_bytes(sum([one.size - LENGTH_BYTES * one.count for one in call.raw if one.size]))
    given = {}
    for one in call.raw:
        if one.elements is not None:
            given[one.input.name] = one.elements
            continue
        data = await request.read(one.size)
        if len(data) < one.size:
            raise _wrong_size(call.size, request.arrived)
        given[one.input.name] = one.elements_in(data)
    if await request.available():
        raise _wrong_size(call.size, "more")
    return given


async def fill(call: Call, request: Request, rows: Mapping[str, Sequence[Array]]) -> None:
    """Write the inputs into `rows`, those of a claim: each chunk of binary data once, as it arrives.

    What came as bytes is checked. Raises `InvalidRequest`.
    """
    for given in call.inputs:
        places = rows[given.tensor.name]
        if given.rows is not None:
            for place, row in zip(places, given.rows, strict=True):
                place[...] = row
        elif given.place is not None:
            await given.place.read_into(places)
        else:
            for place in places:
                if not await request.read_into(place.data.cast("B")):
                    raise _wrong_size(call.size, request.arrived)
    if await request.available():
        raise _wrong_size(call.size, "more")
    for given in call.inputs:
        if given.rows is None and given.tensor.is_bounded:
            given.tensor.check(rows[given.tensor.name])


class Codec:
    """Translates the infer calls of one model. Raises `InvalidRequest` and `TooLarge`, before any array is made.

    It does no input or output except for outputs that go to shared memory, and does not handle the bytes of binary
    data. Of HTTP it knows only the number in `Inference-Header-Content-Length`.
    """

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self.public_name = spec.public_name
        self.calls = Calls(spec, limits, regions)
        self._limits = limits
        self._request = msgspec.json.Decoder(InferRequest)
        self._described = lru_cache(64)(self._decode)

    def decode(self, text: bytes, following: int | None = 0) -> Call:
        """Return the call that this JSON describes; `following` is how many bytes follow it, None if not known yet."""
        self.check_json_size(len(text))
        # What describes bytes that follow is the same from call to call. Regions may be registered again in between.
        if following == 0 or len(text) > SHORT or b"shared_memory" in text:
            return self._decode(text, following)
        return self._described(text, following)

    def _decode(self, text: bytes, following: int | None) -> Call:
        check_depth(text, self._limits.json_depth)
        try:
            request = self._request.decode(text)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise InvalidRequest(f"the JSON is not an infer request: {error}{_hint(text)}") from None
        parameters = request.parameters or NO_PARAMETERS
        check_schedule(parameters.timeout, parameters.priority, parameters.sequence_id)
        wanted = self.calls.wanted(request.outputs or (), binary=parameters.binary_data_output)
        if self.calls.raw and self.calls.has_raw([(one.name, one.datatype) for one in request.inputs]):
            return self._raw(request, parameters, wanted, len(text), following)
        tensors, rows, dims = self.calls.match([(one.name, one.datatype, one.shape) for one in request.inputs])
        size = len(text)
        plan = []
        for tensor, given in zip(tensors, request.inputs, strict=True):
            needed = tensor.bytes_of(given.shape)
            binary = _is_binary(given, needed)
            size += needed if binary else 0
            plan.append((tensor, given, binary))
        if following is not None and size != len(text) + following:
            raise _wrong_size(size, len(text) + following)
        inputs = tuple(
            [CallInput(tensor, given.shape) if binary else self._given(tensor, given) for tensor, given, binary in plan]
        )
        about = request.id or "", parameters.timeout, parameters.priority
        return Call(inputs, rows, wanted, size, *about, dims=dims)

    def decode_raw(self, size: int) -> Call:
        """Return the call of a body of `size` bytes without JSON: one row of the only input, all outputs in binary."""
        inputs, wanted = self.calls.inputs, self.calls.wanted((), binary=True)
        read = [one for one in self.calls.raw.values() if not one.optional]
        if len(read) == 1:
            return Call((), 1, wanted, size, raw=(RawElements(read[0], 1, None, size, bare=True),))
        if len(inputs) != 1:
            raise InvalidRequest(f"a body without JSON fits one input, but {self.spec.name!r} has {len(inputs)}")
        (tensor,) = inputs.values()
        shape = tensor.one_row(size)
        given = (CallInput(tensor, shape),)
        dims = self.calls.dims(((tensor.name, shape),)) if self.calls.varies else NO_DIMS
        return Call(given, 1, wanted, size, dims=dims)

    def decode_row(self, text: bytes) -> Call:
        """Return the call of one row that this JSON describes, its inputs by name (Triton's generate extension)."""
        self.check_json_size(len(text))
        check_depth(text, self._limits.json_depth)
        try:
            request = read_generate(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the JSON is not a generate request: {error}{_hint(text)}") from None
        about = request.parameters or NO_PARAMETERS
        check_schedule(about.timeout, about.priority, about.sequence_id)
        is_raw = self.calls.has_raw(
            [(name, BYTES if data.startswith(b'"') else "") for name, data in request.inputs.items()]
        )
        for tensor in (*(() if is_raw else self.calls.inputs.values()), *self.calls.outputs.values()):
            if not tensor.has_json:
                stated = f"{tensor.title} is {tensor.datatype}, which has no JSON form"
                raise InvalidRequest(f"{stated}: use /infer, which takes and returns binary data")
        if is_raw:
            return self._raw_row(request, about)
        rows = {name: self._row(name, data) for name, data in request.inputs.items()}
        tensors, _, dims = self.calls.match((name, datatype, shape) for name, (datatype, shape, _) in rows.items())
        inputs = [
            CallInput(tensor, shape, tensor.from_json(data, shape=shape))
            for tensor, (_, shape, data) in zip(tensors, rows.values(), strict=True)
        ]
        wanted = self.calls.wanted((), binary=False)
        return Call(tuple(inputs), 1, wanted, 0, request.id or "", about.timeout, about.priority, dims=dims)

    def check_json_size(self, size: int) -> None:
        """Raise `TooLarge` for a JSON part that has more bytes than the limit."""
        if size > self._limits.json_bytes:
            most = self._limits.json_bytes
            raise TooLarge(f"the JSON part has {size} bytes, more than {most}: send large tensors as binary data")

    def encode(
        self, answer: Answer, call: Call, parameters: Mapping[str, object]
    ) -> tuple[bytes, list[bytes | memoryview]]:
        """Return the JSON of the reply with these `parameters`, and the binary data that follow it.

        They have the outputs that the client wants; those that it wants in its shared memory are written there.
        """
        spec = answer.spec or self.spec
        reply: dict[str, object] = {"model_name": self.public_name, "model_version": spec.version}
        if call.id:
            reply["id"] = call.id
        if parameters:
            reply["parameters"] = parameters
        outputs: list[dict[str, object]] = []
        blobs: list[bytes | memoryview] = []
        for wanted in call.wanted:
            found = result(wanted, answer)
            entry: dict[str, object] = {"name": wanted.tensor.name, "datatype": found.datatype, "shape": found.shape}
            if wanted.place is not None:  # nothing more: the C++ client takes all parameters for binary data
                wanted.place.write(found.raw())
            elif wanted.binary:
                data = found.raw()
                blobs.append(data)
                entry["parameters"] = {"binary_data_size": data.nbytes}
            else:
                entry["data"] = found.flat()
            outputs.append(entry)
        reply["outputs"] = outputs
        return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY), blobs

    def encode_row(self, piece: Answer, call: Call, about: Mapping[str, object]) -> bytes:
        """Return a piece of the answer to a call of one row as JSON, its outputs by name; `about` are parameters."""
        spec = piece.spec or self.spec
        reply: dict[str, object] = {"model_name": self.public_name, "model_version": spec.version}
        if call.id:
            reply["id"] = call.id
        if about:
            reply["parameters"] = about
        for wanted in call.wanted:
            reply[wanted.tensor.name] = result(wanted, piece).values[0]
        return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)

    def _raw(
        self,
        request: InferRequest,
        parameters: RequestParameters,
        wanted: tuple[CallOutput, ...],
        size: int,
        following: int | None,
    ) -> Call:
        """Return the call with raw inputs that JSON of this `size` describes."""
        inputs, rows = self.calls.match_raw([(one.name, one.datatype, one.shape) for one in request.inputs])
        total, plan = size, []
        for one, given in zip(inputs, request.inputs, strict=True):
            about = given.parameters
            if about is not None and about.reference() is not None:
                raise InvalidRequest(
                    f"input {one.name!r} is BYTES, which are not read from shared memory: send them in the call"
                )
            follows = None if about is None else about.binary_data_size
            if (given.data is not NO_DATA) + (follows is not None) != 1:
                raise InvalidRequest(f"input {one.name!r} must have either data or the parameter binary_data_size")
            if follows is not None and follows < LENGTH_BYTES * rows:
                least = f"{rows} elements have {LENGTH_BYTES} bytes each just for their lengths"
                raise InvalidRequest(f"input {one.name!r} has a binary_data_size of {follows!s:.40}: {least}")
            total += follows or 0
            plan.append((one, given, follows))
        if following is not None and total != size + following:
            raise _wrong_size(total, size + following)
        raw = []
        for one, given, follows in plan:
            if follows is not None:
                raw.append(RawElements(one, rows, None, follows))
            else:
                base64 = given.parameters is not None and given.parameters.content_type == BASE64
                raw.append(RawElements(one, rows, elements_from_json(one, rows, bytes(given.data), base64=base64)))
        about_call = request.id or "", parameters.timeout, parameters.priority
        return Call((), rows, wanted, total, *about_call, raw=tuple(raw), truncate=parameters.truncate)

    def _raw_row(self, request: GenerateRequest, about: RequestParameters) -> Call:
        """Return the call of one row with raw inputs, each given as a string."""
        listed = {name: b"[%b]" % data for name, data in request.inputs.items()}
        inputs, _ = self.calls.match_raw([(name, BYTES, (1,)) for name in listed])
        raw = []
        for one in inputs:
            if one.media is not Media.TEXT:
                raise InvalidRequest(
                    f"input {one.name!r} is a {one.media}: send it to /infer, as binary data or base64"
                )
            raw.append(RawElements(one, 1, elements_from_json(one, 1, listed[one.name], base64=False)))
        wanted = self.calls.wanted((), binary=False)
        schedule = request.id or "", about.timeout, about.priority
        return Call((), 1, wanted, 0, *schedule, raw=tuple(raw), truncate=about.truncate)

    def _given(self, tensor: Tensor, given: InputTensor) -> CallInput:
        """Return an input that does not follow in binary: its data are in the JSON or in shared memory."""
        reference = None if given.parameters is None else given.parameters.reference()
        if reference is None:
            return CallInput(tensor, given.shape, tensor.from_json(bytes(given.data), shape=given.shape))
        return CallInput(tensor, given.shape, place=self.calls.place(reference, tensor, given.shape))

    def _row(self, name: str, data: bytes) -> tuple[str, tuple[int, ...], bytes]:
        """Return datatype, shape and data of an input of one row, given as a number, a list or nested lists."""
        tensor = self.calls.inputs.get(name)
        listed = data if data.startswith(b"[") and not NESTED.match(data) else b"[%b]" % data
        if tensor is None:
            return "", (), listed  # the name is refused when it is looked up
        if tensor.varies and NESTED.match(data):
            return tensor.datatype, tensor.shape_in(listed), listed
        values = listed.count(b",") + 1 if listed[1:-1].strip() else 0
        return tensor.datatype, (1, *tensor.row_of(values)), listed


def _hint(text: bytes) -> str:
    """Return advice for a text that is not JSON, if the reason is a common one."""
    if not text.strip():
        return ". The body is empty: send what /v2/openapi.json describes"
    if NO_NUMBER.search(text) is not None:
        return ". JSON has no NaN and no Infinity: send such values as binary data"
    return ""


def _is_binary(given: InputTensor, needed: int) -> bool:
    """Return whether the data of an input follow in binary, with exactly `needed` bytes."""
    parameters = given.parameters
    if parameters is None and given.data is not NO_DATA:
        return False
    size = None if parameters is None else parameters.binary_data_size
    lies = parameters is not None and parameters.shared_memory_region is not None
    if (given.data is not NO_DATA) + (size is not None) + lies != 1:
        raise InvalidRequest(
            f"input {given.name!r} must have either data, the parameter binary_data_size or shared_memory_region"
        )
    if size is not None and size != needed:
        stated = f"input {given.name!r} has a binary_data_size of {size!s:.40}"
        raise InvalidRequest(f"{stated}: its shape and datatype need {needed}")
    return size is not None


def _wrong_size(stated: int, size: int | str) -> InvalidRequest:
    """Return the error for a body whose parts do not add up; `size` may be words for an unknown number."""
    return InvalidRequest(f"JSON and binary data have a stated length of {stated} bytes, but the body has {size}")


MARKS = b'[]{}"'
NOT_MARKS = bytes(set(range(256)) - set(MARKS))
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")] = 1
STEPS[list(b"]}")] = -1


def check_depth(text: bytes, most: int) -> None:
    """Raise `InvalidRequest` if JSON is nested more than `most` deep. Linear time, no recursion."""
    if text.count(b"[") + text.count(b"{") <= most:
        return
    without_escapes = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = np.frombuffer(without_escapes.translate(None, NOT_MARKS), np.uint8)
    steps = STEPS[marks]
    quotes = marks == ord('"')
    if quotes.any():
        steps[np.logical_xor.accumulate(quotes)] = 0  # brackets in strings open nothing
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > most:
        raise InvalidRequest(f"the JSON is nested more than {most} deep")
