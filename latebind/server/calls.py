"""A call of one model, over any transport: its tensors are checked before arrays are made, and its outputs chosen."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from struct import pack
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.server.described import NO_WISHES, RequestedOutput
from latebind.server.gateway import NO_DIMS, Array
from latebind.server.limits import Limits
from latebind.server.shared_memory import Place, Reference, Regions

WAITED_HEADER = b"latebind-waited"  # seconds of its deadline that a call has already waited at the ingress

# numpy's name -> the protocol's. BF16 and BYTES are not served yet.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
JSON_ITEMS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}
NO_JSON = frozenset({"FP16"})
SHAPES = 1024  # that are remembered of each model
NESTED = re.compile(rb"\[\s*\[")


class Tensor:
    """One input or output of a model, with everything precomputed that translating it needs."""

    def __init__(self, spec: TensorSpec) -> None:
        self.name = spec.name
        self.title = f"tensor {spec.name!r}"  # in error messages
        self.datatype = DATATYPES[spec.dtype]
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.has_json = self.datatype not in NO_JSON
        self.longest_row = spec.row_bytes
        self._spec = spec
        self._sizes = spec.sizes or spec.shape
        self._named = [place for place, size in enumerate(self._sizes) if not isinstance(size, int)]
        self.varies = bool(self._named)
        self._is_limited = spec.is_limited
        self.is_bounded = self._is_limited or self.datatype == "BOOL"
        item: Any = JSON_ITEMS[self.dtype.kind]
        self._flat = msgspec.json.Decoder(list[item])
        nested: Any = item
        for _ in range(len(spec.shape) + 1):
            nested = list[nested]
        self._nested = msgspec.json.Decoder(nested)

    def rows(self, datatype: str, shape: Sequence[int], *, max_rows: int) -> int:
        """Return how many rows a client's tensor has. Raises `InvalidRequest` if it does not fit this tensor.

        Whether the sizes of named dimensions are allowed is for `Calls` to tell, which sees all inputs.
        """
        if datatype != self.datatype:
            known = "" if datatype in DATATYPES.values() else ", which is not served"
            raise InvalidRequest(f"{self.title} is {datatype!r:.40}{known}: it must be {self.datatype}")
        if not shape or not self._fits(tuple(shape[1:])):
            alone = f": one row is {[1, *shape]}" if shape and self._fits(tuple(shape)) else ""
            wanted = f"[{', '.join(map(str, (-1, *self._sizes)))}], -1 being the batch{alone}"
            raise InvalidRequest(f"{self.title} has shape {list(shape)!s:.80}: it must be {wanted}")
        if not 1 <= shape[0] <= max_rows:
            raise InvalidRequest(f"{self.title} has a batch of {shape[0]!s:.40} rows: send 1 to {max_rows}")
        return shape[0]

    def one_row(self, size: int) -> tuple[int, ...]:
        """Return the shape of one row with this many bytes. Raises `InvalidRequest`."""
        if size == self.longest_row:
            return (1, *self.shape)
        values, rest = divmod(size, self.dtype.itemsize)
        row = () if rest else self.row_of(values)
        if not self._fits(row) or self.bytes_of(row) != size:
            most = "at most " if self._named else ""
            raise InvalidRequest(f"the body has {size} bytes: one row of {self.title} has {most}{self.longest_row}")
        return (1, *row)

    def row_of(self, values: int) -> tuple[int, ...]:
        """Return the shape of a row that has so many values. Raises `InvalidRequest` if none has, or several have."""
        if len(self._named) > 1:
            sides = " and ".join([str(self._sizes[place]) for place in self._named])
            raise InvalidRequest(f"{self.title} may have any {sides}: send nested lists, or its `shape` by /infer")
        if not self._named:
            return self.shape
        (place,) = self._named
        fixed = prod([size for size in self._sizes if isinstance(size, int)])
        size, rest = divmod(values, fixed)
        if rest:
            raise InvalidRequest(f"{self.title} has {values} values: a row has {fixed} for each {self._sizes[place]}")
        return (*self.shape[:place], size, *self.shape[place + 1 :])

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Return how many bytes a tensor of this shape takes in binary; the shape must have been checked."""
        return prod(shape) * self.dtype.itemsize

    def check(self, rows: Sequence[Array]) -> None:
        """Raise `InvalidRequest` if rows that came as bytes hold values that datatype or model do not allow."""
        if not self.is_bounded:
            return
        for row in rows:
            if self.datatype == "BOOL" and row.size and row.view(np.uint8).max() > 1:
                raise InvalidRequest(f"{self.title} has a byte above 1: BOOL knows 0 and 1")
            if self._is_limited:
                self._check_limit(row)

    def shape_in(self, data: bytes) -> tuple[int, ...]:
        """Return the shape that nested JSON arrays have, as far as their first elements tell."""
        try:
            values: Any = self._nested.decode(data)
        except (ValueError, RecursionError) as error:
            raise self._not_such(error) from None
        shape = []
        while isinstance(values, list):
            shape.append(len(values))
            values = values[0] if values else None
        return tuple(shape)

    def from_json(self, data: bytes, *, shape: Sequence[int]) -> Array:
        """Return `data`, a flat or fully nested JSON array, as an array of this shape."""
        if not self.has_json:
            raise InvalidRequest(f"{self.title} is {self.datatype}, which has no JSON form: send it as binary data")
        items = prod(shape)
        commas = data.count(b",")  # one less than numbers, however they are nested
        if commas >= max(items, 1):
            raise InvalidRequest(f"{self.title} has {commas + 1} values: its shape asks for {items}")
        is_nested = NESTED.match(data) is not None
        try:
            array = self._array(self._nested.decode(data)) if is_nested else self._flat_array(self._flat.decode(data))
        except FloatingPointError:
            raise InvalidRequest(f"{self.title} has a number that is too large for {self.datatype}") from None
        except (ValueError, OverflowError, RecursionError) as error:
            why: object = error
            if isinstance(error, OverflowError):
                known: Any = np.iinfo(self.dtype) if self.dtype.kind in "iu" else np.finfo(self.dtype)
                why = f"values must be {known.min} to {known.max}"
            elif isinstance(error, ValueError) and not isinstance(error, msgspec.MsgspecError):  # numpy's own
                why = "lists beside each other differ in length"
            raise self._not_such(why) from None
        if array.size != items or (is_nested and array.shape != tuple(shape)):
            raise InvalidRequest(f"{self.title}: data has shape {list(array.shape)}, but `shape` says {list(shape)}")
        if self._is_limited:
            self._check_limit(array)
        return array.reshape(shape)

    def _not_such(self, why: object) -> InvalidRequest:
        return InvalidRequest(f"{self.title} has data that is not {self.datatype}: {why}")

    def _array(self, values: list[Any]) -> Array:
        with np.errstate(over="raise"):
            return np.array(values, self.dtype)

    def _flat_array(self, values: list[Any]) -> Array:
        """Return the values as an array. For float32, the most common datatype, this takes half of numpy's time."""
        if not values or self.datatype != "FP32":
            return self._array(values)
        try:
            return np.frombuffer(pack(f"<{len(values)}f", *values), self.dtype)
        except OverflowError:
            raise FloatingPointError from None

    def _fits(self, row: tuple[int, ...]) -> bool:
        """Tell whether rows of this shape are rows of the tensor, whatever the sizes of named dimensions."""
        if not self._named:
            return row == self.shape
        fixed = [(place, size) for place, size in enumerate(self._sizes) if isinstance(size, int)]
        return len(row) == len(self.shape) and all(row[place] == size for place, size in fixed)

    def _check_limit(self, array: Array) -> None:
        """Raise `InvalidRequest` if the model does not allow one of the values."""
        # Two passes that compilers make of many numbers at a time: 30 microseconds for 3x224x224 float32.
        if array.size and not self._spec.allows(array.min().item(), array.max().item()):
            found = f"{array.min()} to {array.max()}"
            raise InvalidRequest(f"{self.title} has values from {found}: they must be {self._spec.range()}")


class CallInput(msgspec.Struct, frozen=True):
    """An input that fits the model. Its data are in `rows`, or in shared memory at `place`.

    If both are None, the data follow as bytes in the body.
    """

    tensor: Tensor
    shape: Sequence[int]
    rows: Array | None = None
    place: Place | None = None


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

    `dims` are the sizes of the model's named dimensions in all of its rows.
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
    dims: Mapping[str, int] = NO_DIMS


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
        self._all = [
            tuple([CallOutput(tensor, binary) for tensor in self.outputs.values()]) for binary in (False, True)
        ]
        self._limits = limits
        self._regions = regions or Regions()
        self._matched = lru_cache(SHAPES)(self._match)  # clients send the same few shapes
        self.varies = bool(spec.dims)
        self.dims = lru_cache(SHAPES)(self._dims)

    def _match(self, name: str, datatype: str, shape: tuple[int, ...]) -> tuple[Tensor, int]:
        """Return the tensor of an input and its number of rows."""
        tensor = _known(self.inputs, name, "input", self.spec)
        return tensor, tensor.rows(datatype, shape, max_rows=self._limits.max_rows)

    def _dims(self, shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Mapping[str, int]:
        """Return the sizes of named dimensions in a call whose inputs, by name, have these shapes."""
        try:
            return self.spec.dims_of({name: shape[1:] for name, shape in shapes})
        except ValueError as error:
            raise InvalidRequest(f"tensor {error}") from None

    def match(self, given: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[list[Tensor], int, Mapping[str, int]]:
        """Return the tensor for each input, given by name, datatype and shape, and the rows and sizes of the call.

        The sizes are those of named dimensions.
        """
        found: dict[str, Tensor] = {}
        rows, varies = 0, self.varies
        if varies:
            given = list(given)
        for name, datatype, shape in given:
            tensor, counted = self._matched(name, datatype, tuple(shape))
            if name in found:
                raise InvalidRequest(f"input {name!r} is given twice")
            if found and counted != rows:
                raise InvalidRequest(f"input {name!r} has a batch of {counted} rows, the one before it {rows}")
            rows = counted
            found[name] = tensor
        if len(found) < len(self.inputs):
            missing = next(name for name in self.inputs if name not in found)
            raise InvalidRequest(f"input {missing!r} is missing: {self.spec.name!r} needs {list(self.inputs)}")
        dims = self.dims(tuple([(name, tuple(shape)) for name, _, shape in given])) if varies else NO_DIMS
        return list(found.values()), rows, dims

    def place(self, reference: Reference, tensor: Tensor, shape: Sequence[int]) -> Place:
        """Return where in shared memory an input of this shape lies; the shape must have been checked."""
        found, needed = self._regions.place(reference), tensor.bytes_of(shape)
        if found.size != needed:
            stated = f"{tensor.title} has a shared_memory_byte_size of {found.size}"
            raise InvalidRequest(f"{stated}: its shape and datatype ask for {needed}")
        return found

    def wanted(self, asked: Iterable[RequestedOutput], *, binary: bool) -> tuple[CallOutput, ...]:
        """Return the outputs to send: those asked for, or all. `binary` applies to those that do not say how."""
        wanted: dict[str, CallOutput] = {}
        for one in asked:
            tensor = _known(self.outputs, one.name, "output", self.spec)
            if one.name in wanted:
                raise InvalidRequest(f"output {one.name!r} is asked for twice")
            wishes = one.parameters or NO_WISHES
            classes, most, reference = wishes.classification, self._limits.classes, wishes.reference()
            if not 0 <= classes <= most:
                raise InvalidRequest(f"{tensor.title}: classification is {classes!s:.40}: ask for 1 to {most} classes")
            if classes and tensor.datatype == "BOOL":
                raise InvalidRequest(f"{tensor.title} is BOOL, of which no class is best: leave classification out")
            place = None if reference is None else self._regions.place(reference)
            as_bytes = binary if wishes.binary_data is None else wishes.binary_data
            wanted[one.name] = CallOutput(tensor, as_bytes, classes, place)
        found = tuple(wanted.values()) or self._all[binary]
        for output in found:
            if not (output.binary or output.tensor.has_json or output.classes or output.place):
                tensor = output.tensor
                raise InvalidRequest(
                    f"{tensor.title} is {tensor.datatype}, which has no JSON form: ask for binary data"
                )
        return found


def check_schedule(timeout: int, priority: int, sequence_id: object) -> None:
    """Raise `InvalidRequest` for a time-out that 64 bits do not hold, or a priority or sequence that there is not."""
    if sequence_id:
        raise InvalidRequest("sequences are not served: leave sequence_id out")
    if not 0 <= timeout < 1 << 64:
        raise InvalidRequest(f"timeout is {timeout!s:.40}: send 0 (the default) to {(1 << 64) - 1} microseconds")
    if not 0 <= priority <= 255:
        raise InvalidRequest(f"priority is {priority!s:.40}: give 1 (first) to 255, or 0 for the default")


def _known(tensors: Mapping[str, Tensor], name: str, kind: str, spec: ModelSpec) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise InvalidRequest(f"{spec.name!r} has no {kind} {name!r:.100}: it has {list(tensors)}")
    return tensor
