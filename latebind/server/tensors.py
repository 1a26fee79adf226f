"""One tensor between wire and numpy: datatype, shape and size are checked before an array is made."""

import re
from collections.abc import Sequence
from math import prod
from struct import pack
from typing import Any

import msgspec
import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import TensorSpec
from latebind.sequence.padding import room
from latebind.server.gateway import Array

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
NESTED = re.compile(rb"\[\s*\[")


class Tensor:
    """One input or output of a model, with everything precomputed that translating it needs."""

    def __init__(self, spec: TensorSpec) -> None:
        self.name = spec.name
        self.datatype = DATATYPES[spec.dtype]
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.has_json = self.datatype not in NO_JSON
        self.longest_row = spec.row_bytes
        self._spec = spec
        self.is_padded = spec.padding is not None
        self.is_bounded = spec.is_limited or self.datatype == "BOOL"
        item: Any = JSON_ITEMS[self.dtype.kind]
        self._flat = msgspec.json.Decoder(list[item])
        nested: Any = item
        for _ in range(len(spec.shape) + 1):
            nested = list[nested]
        self._nested = msgspec.json.Decoder(nested)

    def metadata(self) -> dict[str, object]:
        """Return the protocol's description; -1 stands for the batch, and for rows that may be shorter."""
        return {"name": self.name, "datatype": self.datatype, "shape": self._wanted()}

    def rows(self, datatype: str, shape: Sequence[int], *, max_rows: int) -> int:
        """Return how many rows a client's tensor has. Raises `InvalidRequest` if it does not fit this tensor."""
        if datatype != self.datatype:
            known = "" if datatype in DATATYPES.values() else ", which is not served"
            raise InvalidRequest(f"{self.title} is {datatype!r:.40}{known}: it must be {self.datatype}")
        if not shape or not self._fits(tuple(shape[1:])):
            most = f", and rows of 1 to {self.shape[0]}" if self.is_padded else ""
            alone = f": one row is {[1, *shape]}" if shape and self._fits(tuple(shape)) else ""
            wanted = f"{self._wanted()}, -1 being the batch{most}{alone}"
            raise InvalidRequest(f"{self.title} has shape {list(shape)!s:.80}: it must be {wanted}")
        if not 1 <= shape[0] <= max_rows:
            raise InvalidRequest(f"{self.title} has a batch of {shape[0]!s:.40} rows: send 1 to {max_rows}")
        return shape[0]

    def one_row(self, size: int) -> tuple[int, ...]:
        """Return the shape of one row with this many bytes. Raises `InvalidRequest`."""
        shorter, rest = divmod(size, self.dtype.itemsize)
        if self.is_padded and not rest and self._fits((shorter,)):
            return (1, shorter)
        if size != self.longest_row:
            most = "at most " if self.is_padded else ""
            raise InvalidRequest(f"the body has {size} bytes: one row of {self.title} has {most}{self.longest_row}")
        return (1, *self.shape)

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Return how many bytes a tensor of this shape takes in binary; the shape must have been checked."""
        return prod(shape) * self.dtype.itemsize

    def room(self, place: Array, shape: Sequence[int]) -> Array:
        """Return the part of `place` that a row of this shape takes; the rest is filled with padding."""
        return room(place, shape[1:], self._spec) if self.is_padded else place

    def check(self, rows: Sequence[Array]) -> None:
        """Raise `InvalidRequest` if rows that came as bytes hold values that datatype or model do not allow."""
        if not self.is_bounded:
            return
        for row in rows:
            if self.datatype == "BOOL" and row.size and row.view(np.uint8).max() > 1:
                raise InvalidRequest(f"{self.title} has a byte above 1: BOOL knows 0 and 1")
            self._check_limit(row)

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
            why = self._range() if isinstance(error, OverflowError) else error
            raise InvalidRequest(f"{self.title} has data that is not {self.datatype}: {why}") from None
        if array.size != items or (is_nested and array.shape != tuple(shape)):
            raise InvalidRequest(f"{self.title}: data has shape {list(array.shape)}, but `shape` says {list(shape)}")
        self._check_limit(array)
        return array.reshape(shape)

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

    def _range(self) -> str:
        """Return what values of this datatype must be."""
        known = np.iinfo(self.dtype) if self.dtype.kind in "iu" else np.finfo(self.dtype)
        return f"values must be {known.min} to {known.max}"

    def _wanted(self) -> list[int]:
        return [-1, *(-1 if self.is_padded else size for size in self.shape)]

    def _fits(self, row: tuple[int, ...]) -> bool:
        """Tell whether rows of this shape are rows of the tensor."""
        return row == self.shape or (self.is_padded and len(row) == 1 and 1 <= row[0] <= self.shape[0])

    def _check_limit(self, array: Array) -> None:
        """Raise `InvalidRequest` if the model does not allow one of the values."""
        # Two passes that compilers make of many numbers at a time: 30 microseconds for 3x224x224 float32.
        if self._spec.is_limited and array.size and not self._spec.allows(array.min().item(), array.max().item()):
            found = f"{array.min()} to {array.max()}"
            raise InvalidRequest(f"{self.title} has values from {found}: they must be {self._spec.range()}")

    @property
    def title(self) -> str:
        """The name of the tensor in error messages."""
        return f"tensor {self.name!r}"
