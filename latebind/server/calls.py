"""A call of one model, over any transport: its inputs and the outputs it asks for, checked before arrays are made."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import ModelSpec
from latebind.server.description import platform
from latebind.server.gateway import Array
from latebind.server.limits import Limits
from latebind.server.shared_memory import Place, Reference, Regions
from latebind.server.tensors import Tensor

LONGEST_ID = 1024
CLIENT_HEADER = b"latebind-client"  # the address that a call came from, set by an ingress that sends it on
WAITED_HEADER = b"latebind-waited"  # seconds of its deadline that a call has already waited at the ingress


class CallInput(msgspec.Struct, frozen=True):
    """An input that fits the model. Its data are in `rows`, or in shared memory at `place`.

    If both are None, the data follow as bytes in the body.
    """

    tensor: Tensor
    shape: Sequence[int]
    rows: Array | None = None
    place: Place | None = None

    def places(self, rows: Mapping[str, Sequence[Array]]) -> list[Array]:
        """Return the parts of a claim's `rows` that the data go to, one for each row.

        A row that is shorter than the tensor gets the front of its place; the rest is filled with padding.
        """
        return [self.tensor.room(row, self.shape) for row in rows[self.tensor.name]]

    def write(self, places: Sequence[Array]) -> None:
        """Copy `self.rows` to their places."""
        assert self.rows is not None, "the rows follow as bytes"
        for place, row in zip(places, self.rows, strict=True):
            place[...] = row


class OutputRequest(msgspec.Struct, frozen=True):
    """An output as the client asks for it. `binary` is None if it does not say how to send it.

    If `classes` is not 0, the client wants that many best classes of each row instead of all values. `reference` is the
    shared memory to write them to.
    """

    name: str
    binary: bool | None = None
    classes: int = 0
    reference: Reference | None = None


class CallOutput(msgspec.Struct, frozen=True):
    """An output to send: its values or, if `classes` is not 0, the best classes of each row; `binary` or as JSON.

    If it has a `place` in shared memory, it is written there and not sent.
    """

    tensor: Tensor
    binary: bool
    classes: int = 0
    place: Place | None = None


class Call(msgspec.Struct, frozen=True):
    """A checked infer call of `rows` rows; `inputs` are in the order in which their bytes follow.

    `size` is the number of bytes that its body must have. `timeout` is in microseconds, 0 for the default. `priority` 1
    goes first, 0 is the default. `waited` is how many seconds of its time were gone when it came.
    """

    inputs: tuple[CallInput, ...]
    rows: int
    wanted: tuple[CallOutput, ...]
    size: int = 0
    id: str = ""
    timeout: int = 0
    priority: int = 0
    waited: float = 0.0


def with_time_waited(call: Call, said: str | bytes | None) -> Call:
    """Return the call with the time that its caller says it has waited, if it says so. Raises `InvalidRequest`."""
    if not said:
        return call
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InvalidRequest(f"the header {WAITED_HEADER.decode()} is no number of seconds")
    return structs.replace(call, waited=seconds)


class Calls:
    """Checks what calls of one model say about its tensors. Raises `InvalidRequest`, and what `regions` raises.

    Without `regions`, shared memory is turned off.
    """

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self.inputs: Mapping[str, Tensor] = {tensor.name: Tensor(tensor) for tensor in spec.inputs}
        self.outputs: Mapping[str, Tensor] = {tensor.name: Tensor(tensor) for tensor in spec.outputs}
        self._limits = limits
        self._regions = regions or Regions()

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description of the model."""
        return {
            "name": self.spec.name,
            "versions": [self.spec.version],
            "platform": platform(self.spec),
            "inputs": [tensor.metadata() for tensor in self.inputs.values()],
            "outputs": [tensor.metadata() for tensor in self.outputs.values()],
        }

    def match(self, given: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[list[Tensor], int]:
        """Return the tensor for each input, given by name, datatype and shape, and the number of rows of the call."""
        found: dict[str, Tensor] = {}
        rows = 0
        for name, datatype, shape in given:
            tensor = _known(self.inputs, name, "input", self.spec)
            if name in found:
                raise InvalidRequest(f"input {name!r} is given twice")
            counted = tensor.rows(datatype, shape, max_rows=self._limits.max_rows)
            if found and counted != rows:
                raise InvalidRequest(f"input {name!r} has a batch of {counted} rows, the one before it {rows}")
            rows = counted
            found[name] = tensor
        if len(found) < len(self.inputs):
            missing = next(name for name in self.inputs if name not in found)
            raise InvalidRequest(f"input {missing!r} is missing: {self.spec.name!r} needs {list(self.inputs)}")
        return list(found.values()), rows

    def place(self, reference: Reference, tensor: Tensor, shape: Sequence[int]) -> Place:
        """Return where in shared memory an input of this shape lies; the shape must have been checked."""
        found, needed = self._regions.place(reference), tensor.bytes_of(shape)
        if found.size != needed:
            stated = f"{tensor.title} has a shared_memory_byte_size of {found.size}"
            raise InvalidRequest(f"{stated}: its shape and datatype ask for {needed}")
        return found

    def wanted(self, asked: Iterable[OutputRequest], *, binary: bool) -> tuple[CallOutput, ...]:
        """Return the outputs to send: those asked for, or all. `binary` applies to those that do not say how."""
        wanted: dict[str, CallOutput] = {}
        for one in asked:
            tensor = _known(self.outputs, one.name, "output", self.spec)
            if one.name in wanted:
                raise InvalidRequest(f"output {one.name!r} is asked for twice")
            self._check_classes(one.classes, tensor)
            place = None if one.reference is None else self._regions.place(one.reference)
            wanted[one.name] = CallOutput(tensor, binary if one.binary is None else one.binary, one.classes, place)
        found = tuple(wanted.values()) or tuple([CallOutput(tensor, binary) for tensor in self.outputs.values()])
        for output in found:
            if not (output.binary or output.tensor.has_json or output.classes or output.place):
                tensor = output.tensor
                raise InvalidRequest(
                    f"{tensor.title} is {tensor.datatype}, which has no JSON form: ask for binary data"
                )
        return found

    def _check_classes(self, count: int, tensor: Tensor) -> None:
        """Raise `InvalidRequest` unless that many classes can be returned; 0 stands for all values in order."""
        most = self._limits.classes
        if not 0 <= count <= most:
            raise InvalidRequest(f"{tensor.title}: classification is {count!s:.40}: ask for 1 to {most} classes")
        if count and tensor.datatype == "BOOL":
            raise InvalidRequest(f"{tensor.title} is BOOL, of which no class is best: leave classification out")


def check_id(name: str) -> str:
    """Return the id of a request, which the reply repeats. Raises `InvalidRequest` if it is too long."""
    if len(name) > LONGEST_ID:
        raise InvalidRequest(f"the id of the request has {len(name)} letters: {LONGEST_ID} at most")
    return name


def check_timeout(timeout: int) -> int:
    """Return a time-out in microseconds. Raises `InvalidRequest` if the protocol's 64 bits do not hold it."""
    if not 0 <= timeout < 1 << 64:
        raise InvalidRequest(f"timeout is {timeout!s:.40}: send 0 (the default) to {(1 << 64) - 1} microseconds")
    return timeout


def check_priority(priority: int) -> int:
    """Return a priority: 1 goes first, 0 is the default. Raises `InvalidRequest` if it is out of range."""
    if not 0 <= priority <= 255:
        raise InvalidRequest(f"priority is {priority!s:.40}: give 1 (first) to 255, or 0 for the default")
    return priority


def _known(tensors: Mapping[str, Tensor], name: str, kind: str, spec: ModelSpec) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise InvalidRequest(f"{spec.name!r} has no {kind} {name!r:.100}: it has {list(tensors)}")
    return tensor
