"""Queries over arrays of their own, whose tensors are mapped by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import lay_out
from latebind.engine.mapping import Mappings
from latebind.engine.slots import ModelSlots
from latebind.queries.file.wiring import DefinedQuery
from tests.queries.file.written import MODELS

SLOTS = 3
Array = NDArray[Any]


def array(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Values from -2 to 2, or from 0 to 200 where they are whole."""
    values = np.random.default_rng(seed).random(shape)
    return (4 * values - 2 if dtype.startswith("float") else 200 * values).astype(dtype)


def slots(spec: ModelSpec, rows: int) -> ModelSlots:
    inputs, outputs = (
        tuple(np.full((rows, *tensor.shape), 99, tensor.dtype) for tensor in tensors)
        for tensors in (spec.inputs, spec.outputs)
    )
    return ModelSlots(inputs, outputs)


class Bench:
    """A query over arrays of its own."""

    def __init__(self, defined: DefinedQuery, models: Mapping[str, ModelSpec] = MODELS) -> None:
        self.rows = lay_out(models, [defined.query], SLOTS)
        specs = {**models, defined.query.name: defined.query.spec}
        self.slots = {name: slots(spec, self.rows.total[name]) for name, spec in specs.items()}
        self.mappings = Mappings([defined], self.slots, self.rows, models)
        self.name = defined.query.name

    def row(self, node: int, option: int, slot: int) -> int:
        return self.rows.row(self.name, node, option, slot)


IMAGE = array(3, 6, 8)
ROW = array(7, seed=1)
WHOLE = array(2, 5, dtype="uint8")
BOX = np.array([0.3, 0.26, 0.6, 0.8], "float32")
GIVEN = {"image": IMAGE, "row": ROW, "whole": WHOLE, "box": BOX}
FLAT = {
    "flat": ModelSpec("flat", "1", (TensorSpec("row", "float32", (7,)),), (TensorSpec("y", "float32", (2,)),), 1, 1)
}
DECLARED = "".join(
    f'[inputs.{name}]\ndtype = "{one.dtype}"\nshape = {list(one.shape)}\n' for name, one in GIVEN.items()
)
FLAT_QUERY = f"""\
{DECLARED}
[nodes.flat]
models = ["flat"]
[outputs]
image = "image"
whole = "whole"
box = "box"
y = "flat.y"
"""

JOIN = """\
[nodes.left]
models = ["animals"]
inputs.input = "image"
[nodes.right]
models = ["animals"]
inputs.input = "image"
when = "argmax(left.output) == 0"
[outputs]
taken = "first(right.output[argmax(left.output)], left.output[0])"
both = "max(right.output) > max(left.output)"
"""
