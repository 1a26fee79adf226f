"""An infer call as clients describe it, in JSON or protobuf. Only classes: mypyc would drop their options."""

from typing import Annotated

import msgspec

from latebind.domain.errors import InvalidRequest
from latebind.server.shared_memory import Reference

LONGEST_ID = 1024
NO_DATA = msgspec.Raw()
Id = Annotated[str, msgspec.Meta(max_length=LONGEST_ID)]


class TensorParameters(msgspec.Struct, gc=False):
    """The parameters that place a tensor in shared memory."""

    shared_memory_region: str | None = None
    shared_memory_byte_size: int | None = None
    shared_memory_offset: int = 0

    def reference(self) -> Reference | None:
        """Return the bytes of shared memory, if any. Raises `InvalidRequest` if it is unclear which."""
        if self.shared_memory_region is not None:
            return Reference(self.shared_memory_region, self.shared_memory_byte_size, self.shared_memory_offset)
        if self.shared_memory_byte_size is not None or self.shared_memory_offset:
            raise InvalidRequest("shared memory parameters are given without shared_memory_region")
        return None


class InputParameters(TensorParameters, gc=False):
    """The parameters of an input; its `content_type` is "base64" where JSON has bytes."""

    binary_data_size: int | None = None
    content_type: str | None = None


class OutputParameters(TensorParameters, gc=False):
    """The parameters of a requested output."""

    binary_data: bool | None = None
    classification: int = 0  # this many best classes of each row instead of all values


NO_WISHES = OutputParameters()


class RequestParameters(msgspec.Struct, gc=False):
    """The parameters of a request; unknown ones are ignored. `timeout` is in microseconds, 0 for the default.

    Texts that are too long are cut if `truncate` is true.
    """

    timeout: int = 0
    binary_data_output: bool = False
    priority: int = 0
    sequence_id: int | str = 0
    truncate: bool = False


NO_PARAMETERS = RequestParameters()


class InputTensor(msgspec.Struct, gc=False):
    """An input as the client sends it; `data` is decoded only after shape and datatype were checked."""

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
    id: Id | None = None
    parameters: RequestParameters | None = None
    outputs: list[RequestedOutput] | None = None


class GenerateRequest(msgspec.Struct, gc=False):
    """The JSON of a call of one row: `inputs` are its other keys, each with its value as raw JSON."""

    inputs: dict[str, bytes]
    id: Id | None = None
    parameters: RequestParameters | None = None


OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
ABOUT = ("id", "parameters")  # keys that are not inputs


def read_generate(text: bytes) -> GenerateRequest:
    """Return the call of one row that this JSON describes. Raises `ValueError`."""
    given = OBJECT.decode(text)
    about = {key: msgspec.json.decode(given.pop(key)) for key in ABOUT if key in given}
    inputs = {name: bytes(value) for name, value in given.items()}
    return msgspec.convert({**about, "inputs": inputs}, GenerateRequest)
