"""Infer calls of one model between protobuf messages and arrays. No input or output happens here."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
import orjson

from latebind.domain.errors import Expired, InvalidRequest
from latebind.domain.model import ModelSpec
from latebind.server.calls import Asked, Call, Calls, Given, check_id, check_priority, check_timeout
from latebind.server.gateway import Answer, Array
from latebind.server.limits import Limits
from latebind.server.results import result
from latebind.server.rpc.messages import Message, ModelInferResponse
from latebind.server.rpc.wire import Raw, joined
from latebind.server.tensors import Tensor

MOST_DIMENSIONS = 64
MICROSECONDS = 1e6

# datatype -> the field of InferTensorContents that has its values; what is not here comes as raw contents
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

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        self.spec = spec
        self._calls = Calls(spec, limits)

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description of the model."""
        return self._calls.metadata()

    def decode(self, request: Message, raw: Raw, seconds: float | None = None) -> Call:
        """Return the call that a request with these raw contents is; its client waits so many seconds, or for ever.

        Raises `Expired` where it waits no more.
        """
        timeout, priority = _schedule(request.parameters)
        inputs, outputs = request.inputs, request.outputs
        wanted = self._calls.wanted([_asked(one) for one in outputs] if outputs else (), binary=True)
        tensors, rows = self._calls.match((one.name, one.datatype, _shape(one)) for one in inputs)
        shapes = [tuple(one.shape) for one in inputs]
        arrays = _from_raw(tensors, shapes, request, raw) if raw else _from_contents(tensors, shapes, request)
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.check((array,))
        given = tuple(map(Given, tensors, shapes, arrays))
        return Call(given, rows, wanted, 0, check_id(request.id), _sooner(timeout, seconds), priority)

    def encode(self, answer: Answer, call: Call, parameters: Mapping[str, object]) -> bytes:
        """Return the response that gives the client the outputs it wants."""
        spec = answer.spec or self.spec
        reply = ModelInferResponse(model_name=spec.name, model_version=spec.version, id=call.id)
        for key, value in parameters.items():
            _tell(reply.parameters[key], value)
        raw: list[bytes | memoryview] = []
        for wanted in call.wanted:
            found = result(wanted, answer)
            reply.outputs.add(name=wanted.tensor.name, datatype=found.datatype, shape=found.shape)
            raw.append(found.raw())
        return joined(reply, raw)


def parameter(given: Message) -> object:
    """Return what a parameter says, None where it says nothing."""
    kind = given.WhichOneof("parameter_choice")
    return None if kind is None else getattr(given, kind)


def _schedule(parameters: Mapping[str, Message]) -> tuple[int, int]:
    """Return time-out and priority of a request; other parameters are let through unread."""
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


def _sooner(timeout: int, seconds: float | None) -> int:
    """Return the time-out in microseconds, which the patience of the client bounds."""
    if seconds is None:
        return timeout
    if seconds <= 0:
        raise Expired("the deadline of the call passed before it was read: allow more time")
    return max(1, int(min(timeout or inf, seconds * MICROSECONDS)))


def _asked(output: Message) -> Asked:
    """Return what the client asks for. Raises `InvalidRequest` for what is not served."""
    parameters = output.parameters
    if not parameters:
        return Asked(output.name)
    if "shared_memory_region" in parameters:
        raise InvalidRequest(f"output {output.name!r:.100}: shared memory is not served")
    return Asked(output.name, classes=_number(parameters, "classification"))


def _shape(given: Message) -> Sequence[int]:
    shape: Sequence[int] = given.shape
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidRequest(f"input {given.name!r:.100} has {len(shape)} dimensions: {MOST_DIMENSIONS} at most")
    if "shared_memory_region" in given.parameters:
        raise InvalidRequest(f"input {given.name!r:.100}: shared memory is not served")
    return shape


def _from_raw(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], request: Message, raw: Raw) -> list[Array]:
    """Return the inputs as views of their raw contents."""
    if len(raw) != len(tensors):
        raise InvalidRequest(f"raw_input_contents has {len(raw)} entries: {len(tensors)} inputs need one each")
    arrays = []
    for tensor, shape, given, content in zip(tensors, shapes, request.inputs, raw, strict=True):
        if given.HasField("contents"):
            raise InvalidRequest(f"input {tensor.name!r} has contents and raw_input_contents: send one of them")
        if len(content) != tensor.bytes_of(shape):
            needed = tensor.bytes_of(shape)
            raise InvalidRequest(f"{tensor.title} has {len(content)} bytes: its shape and datatype ask for {needed}")
        arrays.append(np.frombuffer(content, tensor.dtype).reshape(shape))
    return arrays


def _from_contents(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], request: Message) -> list[Array]:
    """Return the inputs as arrays of their typed contents."""
    return [
        _typed(tensor, shape, given.contents)
        for tensor, shape, given in zip(tensors, shapes, request.inputs, strict=True)
    ]


def _typed(tensor: Tensor, shape: tuple[int, ...], contents: Message) -> Array:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequest(f"{tensor.title} is {tensor.datatype}, which has no contents: send raw_input_contents")
    values = getattr(contents, field)
    items = tensor.bytes_of(shape) // tensor.dtype.itemsize
    if len(values) != items:
        raise InvalidRequest(f"{tensor.title} has {len(values)} values in {field}: its shape asks for {items}")
    try:
        return np.array(values[:], tensor.dtype).reshape(shape)
    except OverflowError as error:
        raise InvalidRequest(f"{tensor.title} has contents that are not {tensor.datatype}: {error}") from None


def _tell(place: Message, value: object) -> None:
    """Write a parameter of a response; what the protocol has no form for, such as a list, becomes JSON."""
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
