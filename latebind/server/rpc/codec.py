"""Translates infer calls of one model between protobuf messages and arrays. No input or output happens here."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np
import orjson

from latebind.domain.errors import Expired, InvalidRequest
from latebind.domain.model import ModelSpec
from latebind.server.calls import Call, CallInput, Calls, OutputRequest, check_id, check_priority, check_timeout
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits
from latebind.server.rest.encoding import ReplyParameters
from latebind.server.results import result
from latebind.server.rpc.messages import Message, ModelInferResponse
from latebind.server.rpc.wire import Raw, joined
from latebind.server.shared_memory import Reference, Regions
from latebind.server.tensors import Tensor

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


class RpcCodec:
    """Translates the infer calls of one model. Raises `InvalidRequest` before anything is copied."""

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self._calls = Calls(spec, limits, regions)

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description of the model."""
        return self._calls.metadata()

    def decode(self, request: Message, raw: Raw, seconds: float | None = None) -> Call:
        """Return the call of a request with these raw contents; `seconds` is how long its client still waits.

        None stands for a client without a deadline. Raises `Expired` if the client no longer waits.
        """
        timeout, priority = _schedule(request.parameters)
        inputs, outputs = request.inputs, request.outputs
        wanted = self._calls.wanted([_asked(one) for one in outputs] if outputs else (), binary=True)
        tensors, rows = self._calls.match((one.name, one.datatype, _shape(one)) for one in inputs)
        contents = iter(raw) if raw else None
        given = tuple([self._given(tensor, one, contents) for tensor, one in zip(tensors, inputs, strict=True)])
        if contents is not None and next(contents, None) is not None:
            raise InvalidRequest(f"raw_input_contents has {len(raw)} entries: more than there are inputs for")
        return Call(given, rows, wanted, 0, check_id(request.id), sooner(timeout, seconds), priority)

    def encode(self, answer: Answer, call: Call, reply_parameters: ReplyParameters) -> bytes:
        """Return the serialised response, with the outputs that the client wants."""
        spec = answer.spec or self.spec
        reply = ModelInferResponse(model_name=spec.name, model_version=spec.version, id=call.id)
        for key, value in reply_parameters(spec, answer).items():
            _tell(reply.parameters[key], value)
        raw: list[bytes | memoryview] = []
        for wanted in call.wanted:
            found = result(wanted, answer)
            reply.outputs.add(name=wanted.tensor.name, datatype=found.datatype, shape=found.shape)
            if wanted.place is None:
                raw.append(found.raw())
            else:
                wanted.place.write(found.raw())
                raw.append(b"")  # clients expect an entry for each output
        return joined(reply.SerializeToString(), raw)

    def _given(self, tensor: Tensor, given: Message, contents: Iterator[bytes | memoryview] | None) -> CallInput:
        """Return an input: a view of the next raw contents, its typed contents, or its place in shared memory."""
        shape = tuple(given.shape)
        reference = _reference(given.parameters) if given.parameters else None
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


def _schedule(parameters: Mapping[str, Message]) -> tuple[int, int]:
    """Return time-out and priority of a request; unknown parameters are ignored."""
    if not parameters:
        return 0, 0
    if "sequence_id" in parameters and parameter(parameters["sequence_id"]):
        raise InvalidRequest("sequences are not served: leave sequence_id out")
    return check_timeout(_number(parameters, "timeout")), check_priority(_number(parameters, "priority"))


def _number(parameters: Mapping[str, Message], name: str) -> int:
    value = parameter(parameters[name]) if name in parameters else 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"parameter {name!r} is {value!r:.40}: give a whole number")
    return value


def sooner(timeout: int, seconds: float | None) -> int:
    """Return the time-out in microseconds, at most the `seconds` that the client still waits."""
    if seconds is None:
        return timeout
    if seconds <= 0:
        raise Expired("the deadline of the call passed before it was read: allow more time")
    return max(1, int(min(timeout or inf, seconds * MICROSECONDS)))


def _asked(output: Message) -> OutputRequest:
    """Return an output as the client asks for it. Raises `InvalidRequest` for what is not supported."""
    parameters = output.parameters
    if not parameters:
        return OutputRequest(output.name)
    return OutputRequest(output.name, classes=_number(parameters, "classification"), reference=_reference(parameters))


def _shape(given: Message) -> Sequence[int]:
    shape: Sequence[int] = given.shape
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidRequest(f"input {given.name!r:.100} has {len(shape)} dimensions: {MOST_DIMENSIONS} at most")
    return shape


def _reference(parameters: Mapping[str, Message]) -> Reference | None:
    """Return the bytes of shared memory, if any. Raises `InvalidRequest` if it is unclear which."""
    size = _number(parameters, "shared_memory_byte_size") if "shared_memory_byte_size" in parameters else None
    offset = _number(parameters, "shared_memory_offset")
    if "shared_memory_region" in parameters:
        return Reference(str(parameter(parameters["shared_memory_region"])), size, offset)
    if size is not None or offset:
        raise InvalidRequest("a place in shared memory is given without its shared_memory_region")
    return None


def _viewed(tensor: Tensor, shape: tuple[int, ...], given: Message, contents: Iterator[bytes | memoryview]) -> Array:
    """Return an input as a view of its raw contents."""
    if given.HasField("contents"):
        raise InvalidRequest(f"{tensor.title} has contents and raw_input_contents: send one of them")
    content = next(contents, None)
    if content is None:
        raise InvalidRequest(f"{tensor.title} has no entry in raw_input_contents, though others have one")
    if len(content) != tensor.bytes_of(shape):
        needed = tensor.bytes_of(shape)
        raise InvalidRequest(f"{tensor.title} has {len(content)} bytes: its shape and datatype ask for {needed}")
    return np.frombuffer(content, tensor.dtype).reshape(shape)


def _typed(tensor: Tensor, shape: tuple[int, ...], given: Message) -> Array:
    """Return an input as an array of its typed contents."""
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequest(f"{tensor.title} is {tensor.datatype}, which has no contents: send raw_input_contents")
    values = getattr(given.contents, field)
    items = tensor.bytes_of(shape) // tensor.dtype.itemsize
    if len(values) != items:
        raise InvalidRequest(f"{tensor.title} has {len(values)} values in {field}: its shape asks for {items}")
    try:
        return np.array(values[:], tensor.dtype).reshape(shape)
    except OverflowError as error:
        raise InvalidRequest(f"{tensor.title} has contents that are not {tensor.datatype}: {error}") from None


def _tell(place: Message, value: object) -> None:
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
