"""Translates infer calls of one model between bytes and arrays: JSON and the binary tensor extension.

It does no input or output except for outputs that go to shared memory. Of HTTP it knows only the number in
`Inference-Header-Content-Length`.
"""

import re

import msgspec
import numpy as np
import orjson

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import ModelSpec
from latebind.server.calls import Call, CallInput, Calls, OutputRequest, check_priority, check_timeout
from latebind.server.gateway import Answer
from latebind.server.limits import Limits
from latebind.server.rest.encoding import ReplyParameters, encode
from latebind.server.rest.infer_json import (
    NO_DATA,
    NO_PARAMETERS,
    Encoded,
    InferRequest,
    InputTensor,
    RequestedOutput,
    RequestParameters,
    read_generate,
)
from latebind.server.results import result
from latebind.server.shared_memory import Regions
from latebind.server.tensors import NESTED, Tensor

NO_NUMBER = re.compile(rb"[\[,:]\s*-?(?:NaN|Infinity)")


class Codec:
    """Translates the infer calls of one model. Raises `InvalidRequest` and `TooLarge`, before any array is made.

    It does not handle the bytes of binary data: `server/rest/filling.py` copies them to their slots.
    """

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self._limits = limits
        self._calls = Calls(spec, limits, regions)
        self._request = msgspec.json.Decoder(InferRequest)

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description of the model."""
        return self._calls.metadata()

    def decode(self, text: bytes, following: int | None = 0) -> Call:
        """Return the call that this JSON describes; `following` is how many bytes follow it, None if not known yet."""
        request = self._parse(text)
        parameters = request.parameters or NO_PARAMETERS
        timeout, priority = _checked(parameters)
        wanted = self._calls.wanted(map(_asked, request.outputs or ()), binary=parameters.binary_data_output)
        tensors, rows = self._calls.match([(one.name, one.datatype, one.shape) for one in request.inputs])
        plan = [
            (tensor, given, _is_binary(given, tensor.bytes_of(given.shape)))
            for tensor, given in zip(tensors, request.inputs, strict=True)
        ]
        size = len(text) + sum([tensor.bytes_of(given.shape) for tensor, given, binary in plan if binary])
        if following is not None and size != len(text) + following:
            raise wrong_size(size, len(text) + following)
        inputs = [
            CallInput(tensor, given.shape) if binary else self._given(tensor, given) for tensor, given, binary in plan
        ]
        return Call(tuple(inputs), rows, wanted, size, request.id or "", timeout, priority)

    def decode_row(self, text: bytes) -> Call:
        """Return the call of one row that this JSON describes, its inputs by name (Triton's generate extension)."""
        self.check_json_size(len(text))
        check_depth(text, self._limits.json_depth)
        try:
            request = read_generate(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the JSON is not a generate request: {error}{_hint(text)}") from None
        timeout, priority = _checked(request.parameters or NO_PARAMETERS)
        self._check_all_have_json()
        rows = {name: self._row(name, data) for name, data in request.inputs.items()}
        tensors, _ = self._calls.match((name, datatype, shape) for name, (datatype, shape, _) in rows.items())
        inputs = [
            CallInput(tensor, shape, tensor.from_json(data, shape=shape))
            for tensor, (_, shape, data) in zip(tensors, rows.values(), strict=True)
        ]
        wanted = self._calls.wanted((), binary=False)
        return Call(tuple(inputs), 1, wanted, 0, request.id or "", timeout, priority)

    def encode_row(self, piece: Answer, call: Call) -> bytes:
        """Return a piece of the answer to a call of one row as JSON, its outputs by name."""
        spec = piece.spec or self.spec
        reply: dict[str, object] = {"model_name": spec.name, "model_version": spec.version}
        if call.id:
            reply["id"] = call.id
        for wanted in call.wanted:
            reply[wanted.tensor.name] = result(wanted, piece).values[0]
        return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)

    def _check_all_have_json(self) -> None:
        """Raise `InvalidRequest` if the model has a tensor that cannot be written in JSON."""
        for tensor in (*self._calls.inputs.values(), *self._calls.outputs.values()):
            if not tensor.has_json:
                stated = f"{tensor.title} is {tensor.datatype}, which has no JSON form"
                raise InvalidRequest(f"{stated}: ask this model by /infer, which takes and gives binary data")

    def _row(self, name: str, data: bytes) -> tuple[str, tuple[int, ...], bytes]:
        """Return datatype, shape and data of an input of one row, given as a number, a list or nested lists."""
        tensor = self._calls.inputs.get(name)
        listed = data if data.startswith(b"[") and not NESTED.match(data) else b"[%b]" % data
        if tensor is None:
            return "", (), listed  # the name is refused when it is looked up
        values = listed.count(b",") + 1 if listed[1:-1].strip() else 0
        return tensor.datatype, (1, values) if tensor.is_padded else (1, *tensor.shape), listed

    def decode_raw(self, size: int) -> Call:
        """Return the call of a body of `size` bytes without JSON: one row of the only input, all outputs in binary."""
        inputs = self._calls.inputs
        if len(inputs) != 1:
            raise InvalidRequest(f"a body without JSON fits one input, but {self.spec.name!r} has {len(inputs)}")
        (tensor,) = inputs.values()
        return Call((CallInput(tensor, tensor.one_row(size)),), 1, self._calls.wanted((), binary=True), size)

    def check_json_size(self, size: int) -> None:
        """Raise `TooLarge` for a JSON part that has more bytes than the limit."""
        if size > self._limits.json_bytes:
            most = self._limits.json_bytes
            raise TooLarge(f"the JSON part has {size} bytes, more than {most}: send large tensors as binary data")

    def encode(self, answer: Answer, call: Call, reply_parameters: ReplyParameters) -> Encoded:
        """Return the body of the reply, with the outputs that the client wants."""
        return encode(self.spec, answer, call, reply_parameters)

    def _given(self, tensor: Tensor, given: InputTensor) -> CallInput:
        """Return an input that does not follow in binary: its data are in the JSON or in shared memory."""
        reference = None if given.parameters is None else given.parameters.reference()
        if reference is None:
            return CallInput(tensor, given.shape, tensor.from_json(bytes(given.data), shape=given.shape))
        return CallInput(tensor, given.shape, place=self._calls.place(reference, tensor, given.shape))

    def _parse(self, text: bytes) -> InferRequest:
        self.check_json_size(len(text))
        check_depth(text, self._limits.json_depth)
        try:
            return self._request.decode(text)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise InvalidRequest(f"the JSON is not an infer request: {error}{_hint(text)}") from None


def _hint(text: bytes) -> str:
    """Return advice for a text that is not JSON for one of the usual reasons."""
    if not text.strip():
        return ". The body is empty: send what /v2/openapi.json describes"
    if NO_NUMBER.search(text) is not None:
        return ". JSON has no NaN and no Infinity: send such values as binary data"
    return ""


def _checked(parameters: RequestParameters) -> tuple[int, int]:
    """Return time-out and priority of a call. Raises `InvalidRequest`."""
    if parameters.sequence_id:
        raise InvalidRequest("sequences are not served: leave sequence_id out")
    return check_timeout(parameters.timeout), check_priority(parameters.priority)


def _asked(output: RequestedOutput) -> OutputRequest:
    """Return an output as the client asks for it. Raises `InvalidRequest`."""
    parameters = output.parameters
    if parameters is None:
        return OutputRequest(output.name)
    return OutputRequest(output.name, parameters.binary_data, parameters.classification, parameters.reference())


def _is_binary(given: InputTensor, needed: int) -> bool:
    """Tell whether the data of an input follow in binary, with exactly `needed` bytes."""
    parameters = given.parameters
    size = None if parameters is None else parameters.binary_data_size
    lies = parameters is not None and parameters.shared_memory_region is not None
    if (given.data is not NO_DATA) + (size is not None) + lies != 1:
        raise InvalidRequest(
            f"input {given.name!r} must have either data, the parameter binary_data_size or shared_memory_region"
        )
    if size is not None and size != needed:
        stated = f"input {given.name!r} has a binary_data_size of {size!s:.40}"
        raise InvalidRequest(f"{stated}: its shape and datatype ask for {needed}")
    return size is not None


def wrong_size(stated: int, size: int | str) -> InvalidRequest:
    """Return the error for a body whose parts do not add up; `size` may be words for an unknown number."""
    return InvalidRequest(f"JSON and binary data are said to have {stated} bytes, but the body has {size}")


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
