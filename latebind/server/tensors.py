"""One tensor between the wire and numpy: datatype, shape and size are checked before any array is made."""

import re
from math import prod
from typing import Any

import msgspec
import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import TensorSpec
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
    """One input or output of a model, with what translating it takes worked out once."""

    def __init__(self, spec: TensorSpec) -> None:
        self.name = spec.name
        self.datatype = DATATYPES[spec.dtype]
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.has_json = self.datatype not in NO_JSON
        self.row_items = prod(spec.shape)
        self.row_bytes = spec.row_bytes
        item: Any = JSON_ITEMS[self.dtype.kind]
        self._flat = msgspec.json.Decoder(list[item])
        nested: Any = item
        for _ in range(len(spec.shape) + 1):
            nested = list[nested]
        self._nested = msgspec.json.Decoder(nested)

    def metadata(self) -> dict[str, object]:
        """Return how the protocol describes this tensor; the leading -1 is the batch."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}

    def rows(self, datatype: str, shape: list[int], *, max_rows: int) -> int:
        """Return how many rows a client's tensor has, or raise `InvalidRequest` where it does not fit this one."""
        if datatype != self.datatype:
            known = "" if datatype in DATATYPES.values() else ", which is not served"
            raise InvalidRequest(f"{self.title} is {datatype!r:.40}{known}: it must be {self.datatype}")
        if tuple(shape[1:]) != self.shape or not shape:
            wanted = [-1, *self.shape]
            raise InvalidRequest(f"{self.title} has shape {shape!s:.80}: it must be {wanted}, -1 being the batch")
        if not 1 <= shape[0] <= max_rows:
            raise InvalidRequest(f"{self.title} has a batch of {shape[0]!s:.40} rows: send 1 to {max_rows}")
        return shape[0]

    def from_binary(self, body: bytes, offset: int, *, rows: int) -> Array:
        """Return a read-only view `(rows, *shape)` of the bytes at `offset`; that they are there was checked."""
        flat = np.frombuffer(body, self.dtype, rows * self.row_items, offset)
        if self.datatype == "BOOL" and flat.size and flat.view(np.uint8).max() > 1:
            raise InvalidRequest(f"{self.title} has a byte above 1: BOOL knows 0 and 1")
        return flat.reshape(rows, *self.shape)

    def from_json(self, data: bytes, *, rows: int) -> Array:
        """Return `data`, a flat or fully nested JSON array, as an array `(rows, *shape)`."""
        if not self.has_json:
            raise InvalidRequest(f"{self.title} is {self.datatype}, which has no JSON form: send it as binary data")
        items = rows * self.row_items
        commas = data.count(b",")  # one less than numbers, however they are nested
        if commas >= max(items, 1):
            raise InvalidRequest(f"{self.title} has {commas + 1} values: its shape asks for {items}")
        is_nested = NESTED.match(data) is not None
        try:
            values = (self._nested if is_nested else self._flat).decode(data)
            with np.errstate(over="ignore"):
                array = np.array(values, self.dtype)
        except (ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"{self.title} has data that is not {self.datatype}: {error}") from None
        if array.size != items or (is_nested and array.shape != (rows, *self.shape)):
            raise InvalidRequest(f"{self.title} has data of shape {list(array.shape)}: {[rows, *self.shape]} was said")
        if self.datatype == "FP32" and np.isinf(array).any():
            raise InvalidRequest(f"{self.title} has a number that is too large for FP32")
        return array.reshape(rows, *self.shape)

    @property
    def title(self) -> str:
        """How errors call it."""
        return f"tensor {self.name!r}"
