"""Bodies of the protocol's infer call between bytes and arrays, for one model: JSON and the binary tensor extension.

No input or output happens here save for outputs that go to shared memory, and nothing knows of HTTP beyond the number
in `Inference-Header-Content-Length`.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import orjson

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import ModelSpec
from latebind.server.calls import LONGEST_ID, Asked, Call, Calls, Given, check_priority, check_timeout
from latebind.server.gateway import Answer
from latebind.server.limits import Limits
from latebind.server.results import result
from latebind.server.shared_memory import Reference, Regions
from latebind.server.tensors import Tensor

NO_DATA = msgspec.Raw()
MOST_KNOWN = 256  # texts of calls whose meaning is kept
LONGEST_KNOWN = 2048  # bytes of one, its numbers left out
DATA = b'"data"'


class TensorParameters(msgspec.Struct, gc=False):
    """Where a tensor lies, if that is shared memory."""

    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int = 0

    def reference(self) -> Reference | None:
        """Return the bytes of shared memory that are meant. Raises `InvalidRequest` where it is unclear which."""
        if self.shared_memory_region is not None:
            return Reference(self.shared_memory_region, self.shared_memory_byte_size, self.shared_memory_offset)
        if self.shared_memory_byte_size is not None or self.shared_memory_offset:
            raise InvalidRequest("a place in shared memory is given without its shared_memory_region")
        return None


class InputParameters(TensorParameters, gc=False):
    """What may stand beside an input."""

    binary_data_size: int | None = None


class OutputParameters(TensorParameters, gc=False):
    """What may stand beside a requested output."""

    binary_data: bool | None = None
    classification: int = 0


class RequestParameters(msgspec.Struct, gc=False):
    """What may stand beside a request; others are let through unread. `timeout` in microseconds, 0 for none."""

    timeout: int = 0
    binary_data_output: bool = False
    priority: int = 0
    sequence_id: int | str = 0


class InputTensor(msgspec.Struct, gc=False):
    """An input as the client sends it; `data` stays text until shape and datatype are known to be right."""

    name: str
    shape: list[int]
    datatype: str
    parameters: InputParameters | None = None
    data: msgspec.Raw = NO_DATA


class RequestedOutput(msgspec.Struct, gc=False):
    """An output that the client wants."""

    name: str
    parameters: OutputParameters | None = None


class InferRequest(msgspec.Struct, gc=False):
    """The JSON of an infer call."""

    inputs: list[InputTensor]
    id: Annotated[str, msgspec.Meta(max_length=LONGEST_ID)] = ""
    parameters: RequestParameters = msgspec.field(default_factory=RequestParameters)
    outputs: list[RequestedOutput] | None = None


class Encoded(msgspec.Struct, frozen=True):
    """A body; `json_bytes` is the length of its JSON part where binary data follows, else None."""

    body: bytes
    json_bytes: int | None = None


class Codec:
    """Translates the infer calls of one model. Raises `InvalidRequest` and `TooLarge`, before any array is made.

    Bytes of binary data are none of its business: `server/rest/filling.py` takes them to their slots.
    """

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self._limits = limits
        self._calls = Calls(spec, limits, regions)
        self._request = msgspec.json.Decoder(InferRequest)
        self._known: dict[bytes, Call] = {}
        self._around: dict[tuple[bytes, bytes], Call] = {}  # by what stands before and behind a call's only numbers

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description of the model."""
        return self._calls.metadata()

    def decode(self, text: bytes, following: int | None = 0) -> Call:
        """Return the call that this JSON describes; so many bytes are to follow, None where nobody knows yet."""
        known = self._known.get(text)
        if known is not None and following is not None and known.size == len(text) + following:
            return known
        if following == 0 and (call := self._read_numbers(text)) is not None:
            return call
        request = self._parse(text)
        parameters = request.parameters
        if parameters.sequence_id:
            raise InvalidRequest("sequences are not served: leave sequence_id out")
        timeout, priority = check_timeout(parameters.timeout), check_priority(parameters.priority)
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
            Given(tensor, given.shape) if binary else self._given(tensor, given) for tensor, given, binary in plan
        ]
        call = Call(tuple(inputs), rows, wanted, size, request.id, timeout, priority)
        if size > len(text):
            self._keep(text, call)
        elif len(request.inputs) == 1:
            self._keep_around(text, bytes(request.inputs[0].data), call)
        return call

    def decode_raw(self, size: int) -> Call:
        """Return the call of a body of so many bytes without JSON: one row of the only input, all outputs binary."""
        inputs = self._calls.inputs
        if len(inputs) != 1:
            raise InvalidRequest(f"a body without JSON fits one input, but {self.spec.name!r} has {len(inputs)}")
        (tensor,) = inputs.values()
        return Call((Given(tensor, tensor.one_row(size)),), 1, self._calls.wanted((), binary=True), size)

    def check_json_size(self, size: int) -> None:
        """Raise `TooLarge` for a JSON part of more bytes than are taken."""
        if size > self._limits.json_bytes:
            most = self._limits.json_bytes
            raise TooLarge(f"the JSON part has {size} bytes, more than {most}: send large tensors as binary data")

    def encode(self, answer: Answer, call: Call, parameters: Mapping[str, object]) -> Encoded:
        """Return the body that gives the client the outputs it wants."""
        outputs: list[dict[str, object]] = []
        blobs: list[memoryview] = []
        for wanted in call.wanted:
            found = result(wanted, answer)
            entry: dict[str, object] = {
                "name": wanted.tensor.name,
                "datatype": found.datatype,
                "shape": found.shape,
            }
            if wanted.place is not None:
                wanted.place.write(found.raw())  # said nowhere: the C++ client takes all parameters for binary data
            elif wanted.binary:
                raw = found.raw()
                entry["parameters"] = {"binary_data_size": raw.nbytes}
                blobs.append(raw)
            else:
                entry["data"] = found.flat()
            outputs.append(entry)
        spec = answer.spec or self.spec
        reply: dict[str, object] = {"model_name": spec.name, "model_version": spec.version}
        if call.id:
            reply["id"] = call.id
        if parameters:
            reply["parameters"] = parameters
        reply["outputs"] = outputs
        text = orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)
        return Encoded(b"".join((text, *blobs)), len(text)) if blobs else Encoded(text)

    def _keep(self, text: bytes, call: Call) -> None:
        """Keep what a text means whose tensors all follow it: clients send the same one again and again."""
        follow = all(given.rows is None and given.place is None for given in call.inputs)
        if follow and not call.id and not call.elsewhere and len(text) <= LONGEST_KNOWN:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            self._known[text] = call

    def _keep_around(self, text: bytes, numbers: bytes, call: Call) -> None:
        """Keep what a text means but for the flat numbers of its only input: clients send other ones in the same.

        Where the key is there once and nothing is escaped, that what stands for the numbers is a flat list is all that
        another text with the same before and behind can differ in.
        """
        begin, end = _numbers(text)
        if text[begin:end] != numbers or text.count(DATA) != 1 or b"\\" in text or call.id or call.elsewhere:
            return
        if len(text) - (end - begin) <= LONGEST_KNOWN:
            if len(self._around) == MOST_KNOWN:
                self._around.clear()
            (given,) = call.inputs
            self._around[text[:begin], text[end:]] = msgspec.structs.replace(
                call, inputs=(Given(given.tensor, given.shape),)
            )

    def _read_numbers(self, text: bytes) -> Call | None:
        """Return the call of a text that is known but for its numbers, None where anything may be wrong with it."""
        begin, end = _numbers(text)
        known = self._around.get((text[:begin], text[end:]))
        if known is None or len(text) > self._limits.json_bytes:
            return None
        (given,) = known.inputs
        try:
            rows = given.tensor.from_json(text[begin:end], shape=given.shape)
        except InvalidRequest:
            return None
        return Call(
            (Given(given.tensor, given.shape, rows),),
            known.rows,
            known.wanted,
            len(text),
            timeout=known.timeout,
            priority=known.priority,
        )

    def _given(self, tensor: Tensor, given: InputTensor) -> Given:
        """Return an input that does not follow as binary: it stands in the JSON or lies in shared memory."""
        reference = None if given.parameters is None else given.parameters.reference()
        if reference is None:
            return Given(tensor, given.shape, tensor.from_json(bytes(given.data), shape=given.shape))
        return Given(tensor, given.shape, place=self._calls.place(reference, tensor, given.shape))

    def _parse(self, text: bytes) -> InferRequest:
        self.check_json_size(len(text))
        check_depth(text, self._limits.json_depth)
        try:
            return self._request.decode(text)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise InvalidRequest(f"the JSON is not an infer request: {error}") from None


def _numbers(text: bytes) -> tuple[int, int]:
    """Return where the first list behind the first `DATA` begins and ends, if it is one of numbers."""
    begin = text.find(b"[", text.find(DATA))
    return begin, text.find(b"]", begin) + 1


def _asked(output: RequestedOutput) -> Asked:
    """Return what the client asks for. Raises `InvalidRequest`."""
    parameters = output.parameters
    if parameters is None:
        return Asked(output.name)
    return Asked(output.name, parameters.binary_data, parameters.classification, parameters.reference())


def _is_binary(given: InputTensor, needed: int) -> bool:
    """Tell whether this input's data follow as binary, as many bytes as are needed."""
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
    """Return what to raise where the parts of a body do not fill it; `size` may be words for no known number."""
    return InvalidRequest(f"JSON and binary data are said to have {stated} bytes, but the body has {size}")


MARKS = b'[]{}"'
NOT_MARKS = bytes(set(range(256)) - set(MARKS))
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")] = 1
STEPS[list(b"]}")] = -1


def check_depth(text: bytes, most: int) -> None:
    """Raise `InvalidRequest` where JSON is nested more than `most` deep. Linear in time, with no recursion."""
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
