"""What a served model looks like from outside: its name, its tensors and how many stages it has. No weights here."""

from dataclasses import dataclass
from enum import StrEnum
from math import prod

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}

INNER_DTYPES = frozenset({*ITEM_BYTES, "bfloat16", "complex64", "complex128"})  # clients and cuts know only the above


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model. `shape` leaves the batch dimension out; `dtype` is numpy's and torch's name.

    A row of a sequence may be shorter than `shape` says; `padding` fills it up, None where all rows are full. Values of
    an input are below `limit` and not negative, where one is given: the numbers of words that a model knows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    padding: int | None = None
    limit: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes that one row (one request) of this tensor takes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class StageKind(StrEnum):
    """How often a stage runs for one request (LazyBatching, algorithm 1).

    Once; once for each step of its input; or until the model says that the answer is complete. Only the last stage of a
    model may be a decoder.
    """

    STATIC = "static"
    ENCODER = "encoder"
    DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A step of a query as clients know it: its name, the models that may answer it and the steps it comes `after`.

    `sources` are the names of the tensors that it takes, in the order of its models' inputs: `image` of the client's,
    `gate.output` of another step's, `cars.inputs.image` where something is made of them first.
    """

    name: str
    models: tuple[str, ...]
    after: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as clients and the scheduler know it. A query looks like one whose stages are its `steps`.

    `lookups` are the stages (counted from 0, never the last) behind which a learned cache may answer; `kinds` tells of
    each stage how often it runs, empty where all run once.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    stages: int
    max_batch: int
    lookups: tuple[int, ...] = ()
    kinds: tuple[StageKind, ...] = ()
    steps: tuple[StepSpec, ...] = ()

    def kind(self, stage: int) -> StageKind:
        """Return how often a stage runs."""
        return self.kinds[stage] if self.kinds else StageKind.STATIC
