"""A call of one model, over any transport: checks its tensors before arrays are made, and selects its outputs."""

import re
import time
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from struct import pack
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from latebind.domain.errors import InvalidRequest, TooLarge
from latebind.domain.model import TEXT_OUTPUT, Media, ModelSpec, RawInput, TensorSpec
from latebind.preprocessing.preprocessor import Preprocessor, Raw
from latebind.server.described import NO_WISHES, RequestedOutput
from latebind.server.gateway import NO_DIMS, Array, array_dtype, as_numbers
from latebind.server.limits import Limits, most_rows
from latebind.server.shared_memory import Place, Reference, Regions

WAITED_HEADER = b"latebind-waited"  # seconds of its deadline that a call has already waited at the ingress

# torch's name -> the protocol's. BYTES are what raw inputs have, and some outputs.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "bfloat16": "BF16",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
BYTES = "BYTES"
LENGTH_BYTES = 4  # before each element of BYTES: its length, little-endian
TEXTS, NESTED_TEXTS = msgspec.json.Decoder(list[str]), msgspec.json.Decoder(list[tuple[str]])
JSON_ITEMS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}
NO_JSON = frozenset({"FP16", "BF16"})
SHAPES = 1024  # that are remembered of each model
NESTED = re.compile(rb"\[\s*\[")


class Tensor:
    """One input or output of a model, with everything precomputed that translating it needs.

    `labels` name the values of a row, where a row has one for each.
    """

    def __init__(self, spec: TensorSpec, labels: tuple[str, ...] = ()) -> None:
        self.name = spec.name
        self.labels = labels if len(labels) == prod(spec.shape) else ()
        self.title = f"tensor {spec.name!r}"  # in error messages
        self.datatype = DATATYPES[spec.dtype]
        self.shape = spec.shape
        self.dtype = array_dtype(spec.dtype).newbyteorder("<")
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

    def numbers(self, array: Array) -> Array:
        """Return the numbers that an array of this tensor stands for."""
        return as_numbers(array, self._spec.dtype)

    def rows(self, datatype: str, shape: Sequence[int], *, max_rows: int) -> int:
        """Return how many rows a client's tensor has. Raises `InvalidRequest` if it does not fit this tensor.

        `Calls`, which sees all inputs, checks whether the sizes of named dimensions are allowed.
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
        """Return the shape of a row with so many `values`. Raises `InvalidRequest` if there is none, or several."""
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
                raise InvalidRequest(f"{self.title} has a byte above 1: BOOL is 0 or 1")
            if self._is_limited:
                self._check_limit(row)

    def shape_in(self, data: bytes) -> tuple[int, ...]:
        """Return the shape that nested JSON arrays have according to their first elements."""
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
            raise InvalidRequest(f"{self.title} has {commas + 1} values: its shape needs {items}")
        is_nested = NESTED.match(data) is not None
        try:
            array = self._array(self._nested.decode(data)) if is_nested else self._flat_array(self._flat.decode(data))
        except FloatingPointError:
            raise InvalidRequest(f"{self.title} has a number that is too large for {self.datatype}") from None
        except (ValueError, OverflowError, RecursionError) as error:
            reason: object = error
            if isinstance(error, OverflowError):
                known: Any = np.iinfo(self.dtype) if self.dtype.kind in "iu" else np.finfo(self.dtype)
                reason = f"values must be {known.min} to {known.max}"
            elif isinstance(error, ValueError) and not isinstance(error, msgspec.MsgspecError):  # numpy's own
                reason = "lists on the same level differ in length"
            raise self._not_such(reason) from None
        if array.size != items or (is_nested and array.shape != tuple(shape)):
            raise InvalidRequest(f"{self.title}: data has shape {list(array.shape)}, but `shape` says {list(shape)}")
        if self._is_limited:
            self._check_limit(array)
        return array.reshape(shape)

    def _not_such(self, reason: object) -> InvalidRequest:
        return InvalidRequest(f"{self.title} has data that is not {self.datatype}: {reason}")

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
        """Return whether rows of this shape are rows of the tensor, whatever the sizes of named dimensions."""
        if not self._named:
            return row == self.shape
        fixed = [(place, size) for place, size in enumerate(self._sizes) if isinstance(size, int)]
        return len(row) == len(self.shape) and all(row[place] == size for place, size in fixed)

    def _check_limit(self, array: Array) -> None:
        """Raise `InvalidRequest` if the model does not allow one of the values."""
        array = self.numbers(array)
        # Two passes that compilers make of many numbers at a time: 30 microseconds for 3x224x224 float32.
        if array.size and not self._spec.allows(array.min().item(), array.max().item()):
            found = f"{array.min()} to {array.max()}"
            raise InvalidRequest(f"{self.title} has values from {found}: they must be {self._spec.range()}")


class TextOutput(Tensor):
    """The text of the tokens in `of`, an output of a model: one for each row."""

    def __init__(self, of: TensorSpec) -> None:
        super().__init__(of)
        self.name, self.title = TEXT_OUTPUT, f"tensor {TEXT_OUTPUT!r}"
        self.datatype, self.shape, self.dtype = BYTES, (1,), np.dtype(object)


class LabelOutput(Tensor):
    """The labels whose numbers are in an output of a query: one for each row, "" where no step has run."""

    def __init__(self, of: TensorSpec) -> None:
        super().__init__(of, of.labels)
        self.labels = of.labels
        self.datatype, self.shape, self.has_json = BYTES, (1,), True


class RawElements(msgspec.Struct, frozen=True):
    """A raw input of a call, with `count` elements. If it has none here, they follow as `size` bytes in the body.

    There its length precedes each in 4 bytes; if `bare`, the bytes are the only element, without a length.
    """

    input: RawInput
    count: int
    elements: Sequence[Raw] | None = None
    size: int = 0
    bare: bool = False

    def elements_in(self, data: bytes | memoryview) -> Sequence[Raw]:
        """Return the elements in the bytes that followed. Raises `InvalidRequest`."""
        if self.bare:
            return elements_of(self.input, [bytes(data)])
        title, at, found = f"input {self.input.name!r}", 0, []
        for number in range(self.count):
            begin = at + LENGTH_BYTES
            if begin > len(data):
                raise InvalidRequest(
                    f"{title} has {number} complete elements and some bytes: its shape needs {self.count}"
                )
            size = int.from_bytes(data[at:begin], "little")
            at = begin + size
            if at > len(data):
                there = f"but {len(data) - begin} are left"
                raise InvalidRequest(f"element {number} of {title} has a stated length of {size} bytes, {there}")
            found.append(bytes(data[begin:at]))
        if at != len(data):
            raise InvalidRequest(f"{title} has {len(data) - at} bytes after the {self.count} elements of its shape")
        return elements_of(self.input, found)


def elements_of(given: RawInput, elements: Sequence[bytes]) -> Sequence[Raw]:
    """Return elements that came as bytes, texts decoded. Raises `InvalidRequest` for a text that is not UTF-8."""
    if given.media is not Media.TEXT:
        return elements
    found = []
    for number, element in enumerate(elements):
        try:
            found.append(element.decode())
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 at byte {error.start}: encode it as UTF-8"
            raise InvalidRequest(f"element {number} of input {given.name!r} is {problem}") from None
    return found


def elements_from_json(given: RawInput, count: int, data: bytes, *, base64: bool) -> Sequence[Raw]:
    """Return the elements of a JSON array of strings, flat or each in an array of its own.

    JSON has no bytes: pictures and sounds come in `base64`. Raises `InvalidRequest`.
    """
    title = f"input {given.name!r}"
    if given.media is not Media.TEXT and not base64:
        raise InvalidRequest(
            f"{title} is a {given.media}, and JSON has no bytes: send it as binary data, or as base64 with the input's "
            'parameter {"content_type": "base64"}'
        )
    if (data.count(b'"') - data.count(rb"\"")) // 2 > count:  # before any is decoded; texts may have commas
        raise InvalidRequest(f"{title} has more elements than its shape: {count}")
    try:
        found = [one for (one,) in NESTED_TEXTS.decode(data)] if NESTED.match(data) else TEXTS.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{title} has data that are not BYTES: {error}") from None
    if len(found) != count:
        raise InvalidRequest(f"{title} has {len(found)} elements: its shape needs {count}")
    if not base64:
        return found
    decoded = []
    for number, element in enumerate(found):
        try:
            decoded.append(b64decode(element, validate=True))
        except ValueError:
            raise InvalidRequest(
                f"element {number} of {title} is not base64: encode it as base64, with padding"
            ) from None
    return elements_of(given, decoded)


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


class Terms(msgspec.Struct, frozen=True):
    """The id and the schedule of a call of any kind. Its time counts from when it `began`, on `time.monotonic()`.

    `timeout`, `priority` and `waited` are those of `Call`.
    """

    id: str = ""
    timeout: int = 0
    priority: int = 0
    waited: float = 0.0
    began: float = msgspec.field(default_factory=time.monotonic)


class Call(msgspec.Struct, frozen=True):
    """A checked infer call of `rows` rows; `inputs` are in the order in which their bytes follow.

    `dims` are the sizes of the model's named dimensions in all of its rows.
    `size` is the number of bytes that its body must have. `timeout` is in microseconds, 0 for the default. `priority` 1
    goes first, 0 is the default. `waited` is how many seconds of its time were gone when it arrived.

    A call with `raw` inputs has no others; elements that are too long are cut if `truncate` is true. `preprocessor`
    made its `inputs`, if they were made of raw ones, or is to decode its answer to text.
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
    raw: tuple[RawElements, ...] = ()
    truncate: bool = False
    preprocessor: Preprocessor | None = None


Stated = TypeVar("Stated", Call, Terms)


def with_time_waited(call: Stated, header: str | bytes | None) -> Stated:
    """Return the call with the time that it has waited according to `header`, if given. Raises `InvalidRequest`."""
    if not header:
        return call
    try:
        seconds = float(header)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InvalidRequest(f"the header {WAITED_HEADER.decode()} is not a number of seconds")
    return structs.replace(call, waited=seconds)


class Calls:
    """Checks what calls of one model say about its tensors. Raises `InvalidRequest`, and what `regions` raises.

    Without `regions`, shared memory is turned off.
    """

    def __init__(self, spec: ModelSpec, limits: Limits, regions: Regions | None = None) -> None:
        self.spec = spec
        self.inputs: Mapping[str, Tensor] = {tensor.name: Tensor(tensor) for tensor in spec.inputs}
        self.outputs: Mapping[str, Tensor] = {
            tensor.name: LabelOutput(tensor) if tensor.labels else Tensor(tensor, spec.about.labels)
            for tensor in spec.outputs
        }
        if spec.written is not None:
            self.outputs = {**self.outputs, TEXT_OUTPUT: TextOutput(spec.written)}
        self._all = [
            tuple([CallOutput(tensor, binary) for tensor in self.outputs.values()]) for binary in (False, True)
        ]
        self.raw = {one.name: one for one in spec.about.raw}
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

    def has_raw(self, given: Iterable[tuple[str, str]]) -> bool:
        """Return whether a call with inputs of these names and datatypes has raw ones."""
        return any(name in self.raw and (kind == BYTES or name not in self.inputs) for name, kind in given)

    def match_raw(self, given: Iterable[tuple[str, str, Sequence[int]]]) -> tuple[list[RawInput], int]:
        """Return the raw input for each that is given by name, datatype and shape, and the number of rows."""
        found: dict[str, RawInput] = {}
        rows, most = 0, most_rows(self.spec, self._limits)
        for name, datatype, shape in given:
            one = self.raw.get(name)
            if one is None:
                takes = f"{list(self.raw)}, or {list(self.inputs)} in their place"
                raise InvalidRequest(f"{self.spec.name!r} does not read an input {name!r:.100}: send {takes}")
            if name in found:
                raise InvalidRequest(f"input {name!r} is given twice")
            if datatype != BYTES:
                raise InvalidRequest(f"input {name!r} is {datatype!r:.40}: it must be {BYTES}")
            if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
                raise InvalidRequest(f"input {name!r} has shape {list(shape)!s:.80}: it must be [-1, 1] or [-1]")
            if not 1 <= shape[0] <= most:
                raise InvalidRequest(f"input {name!r} has a batch of {shape[0]!s:.40} rows: send 1 to {most}")
            if found and shape[0] != rows:
                raise InvalidRequest(f"input {name!r} has a batch of {shape[0]} rows, the one before it {rows}")
            rows = shape[0]
            found[name] = one
        missing = [one.name for one in self.raw.values() if not one.optional and one.name not in found]
        if missing:
            raise InvalidRequest(f"input {missing[0]!r} is missing: {self.spec.name!r} reads {list(self.raw)}")
        return list(found.values()), rows

    def check_element_bytes(self, size: int) -> None:
        """Raise `TooLarge` for raw inputs that have more bytes in all than a call may have."""
        if size > self._limits.element_bytes:
            raise TooLarge(
                f"the call has {size} bytes to read, more than {self._limits.element_bytes}: send fewer rows"
            )

    def place(self, reference: Reference, tensor: Tensor, shape: Sequence[int]) -> Place:
        """Return where in shared memory an input of this shape lies; the shape must have been checked."""
        found, needed = self._regions.place(reference), tensor.bytes_of(shape)
        if found.size != needed:
            stated = f"{tensor.title} has a shared_memory_byte_size of {found.size}"
            raise InvalidRequest(f"{stated}: its shape and datatype need {needed}")
        return found

    def wanted(self, requested: Iterable[RequestedOutput], *, binary: bool) -> tuple[CallOutput, ...]:
        """Return the outputs to send: those asked for, or all. `binary` applies where a request does not say how."""
        wanted: dict[str, CallOutput] = {}
        for one in requested:
            tensor = _known(self.outputs, one.name, "output", self.spec)
            if one.name in wanted:
                raise InvalidRequest(f"output {one.name!r} is requested twice")
            wishes = one.parameters or NO_WISHES
            classes, most, reference = wishes.classification, self._limits.classes, wishes.reference()
            if not 0 <= classes <= most:
                raise InvalidRequest(f"{tensor.title}: classification is {classes!s:.40}: ask for 1 to {most} classes")
            if classes and tensor.datatype in {"BOOL", BYTES}:
                stated = f"{tensor.title} is {tensor.datatype}"
                raise InvalidRequest(f"{stated}, which has no classes: leave classification out")
            place = None if reference is None else self._regions.place(reference)
            as_bytes = binary if wishes.binary_data is None else wishes.binary_data
            wanted[one.name] = CallOutput(tensor, as_bytes, classes, place)
        found = tuple(wanted.values()) or self._all[binary]
        for output in found:
            if not (output.binary or output.tensor.has_json or output.classes or output.place):
                tensor = output.tensor
                raise InvalidRequest(
                    f"{tensor.title} is {tensor.datatype}, which has no JSON form: request binary data"
                )
        return found


def check_schedule(timeout: int, priority: int, sequence_id: object) -> None:
    """Raise `InvalidRequest` for a time-out beyond 64 bits, an invalid priority, or a sequence."""
    if sequence_id:
        raise InvalidRequest("sequences are not served: leave sequence_id out")
    if not 0 <= timeout < 1 << 64:
        raise InvalidRequest(f"timeout is {timeout!s:.40}: send 0 (the default) to {(1 << 64) - 1} microseconds")
    if not 0 <= priority <= 255:
        raise InvalidRequest(f"priority is {priority!s:.40}: give 1 (first) to 255, or 0 for the default")


def _known(tensors: Mapping[str, Tensor], name: str, kind: str, spec: ModelSpec) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        read = [one.name for one in spec.about.raw] if kind == "input" else []
        instead = f", or {read} in their place" if read else ""
        raise InvalidRequest(f"{spec.name!r} has no {kind} {name!r:.100}: it has {list(tensors)}{instead}")
    return tensor
