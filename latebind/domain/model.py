"""What a served model looks like from outside: its name, its tensors and its number of stages. No weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from latebind.domain.sizes import Dim, Size, size_of
from latebind.domain.split import public_name

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "bfloat16": 2,
}  # fmt: skip
# Of tensors within stages; clients and cuts use those above.
INNER_DTYPES = frozenset({*ITEM_BYTES, "complex64", "complex128"})
# What queries compute with: numpy has no bfloat16.
COMPUTED_DTYPES = tuple(name for name in ITEM_BYTES if name != "bfloat16")
LENGTH = "length"  # the named dimension of what a sequence model reads
TEXT_OUTPUT = "text"  # the output that is the text of the tokens that a model has written


def is_floating(dtype: str) -> bool:
    """Return whether numbers of this dtype are floating-point ones."""
    return "float" in dtype


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model. `shape` leaves the batch dimension out; `dtype` is numpy's and torch's name.

    Where rows differ in size, `shape` is that of the largest, and `sizes` says what each of its dimensions is in terms
    of the model's named ones; inputs name these or are fixed. `padding` is what a row beside a longer one is padded
    with; None if all rows have `shape`. If an input has a `limit`, its values are from `least` to below it: the
    vocabulary of a model. If it has a `largest`, its values are numbers from minus that to that, neither infinite nor
    NaN. If it has `labels`, its values are indices of these, and clients get the labels themselves.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    padding: int | None = None
    limit: int | None = None
    least: int = 0
    largest: float | None = None
    sizes: tuple[Size, ...] = ()
    labels: tuple[str, ...] = ()

    def shape_of(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of a row whose named dimensions have these sizes."""
        return tuple([size_of(size, dims) for size in self.sizes]) if self.sizes else self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes that one row (one request) of this tensor takes, or the largest if they differ."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def filler(self) -> int:
        """A whole number that this input allows: 0, or its `least` if that is greater."""
        return max(self.least, 0)

    @property
    def is_limited(self) -> bool:
        """Whether some values of its dtype are not allowed."""
        return self.limit is not None or self.largest is not None

    def allows(self, lowest: int | float, highest: int | float) -> bool:
        """Return whether all values from `lowest` to `highest` are allowed; NaN is not if values are limited."""
        if self.limit is not None:
            return self.least <= lowest and highest < self.limit
        return self.largest is None or (-self.largest <= lowest and highest <= self.largest)

    def range(self) -> str:
        """Return in words which values are allowed."""
        if self.limit is not None:
            return f"{self.least} to {self.limit - 1}"
        return "any" if self.largest is None else f"numbers from {-self.largest:g} to {self.largest:g}"

    def unlimited(self) -> "TensorSpec":
        """Return the tensor with values of any size."""
        return replace(self, limit=None, least=0, largest=None)


class StageKind(StrEnum):
    """How often a stage runs for one request (LazyBatching, algorithm 1).

    STATIC: once. ENCODER: once for each step of the input. DECODER: until the model says that the answer is complete;
    only the last stage of a model may be one.
    """

    STATIC = "static"
    ENCODER = "encoder"
    DECODER = "decoder"


class Task(StrEnum):
    """What a model is for: what its output means, and which endpoints may ask it.

    EMBED: one vector for each row. CLASSIFY: logits of the classes. RERANK: one logit, how well two texts go together.
    TAG: logits of the classes for each token. GENERATE: tokens of a text. DETECT: logits and boxes for each of a fixed
    number of queries. SEGMENT: logits of the classes for each place of a picture.
    """

    EMBED = "embed"
    CLASSIFY = "classify"
    RERANK = "rerank"
    TAG = "tag"
    GENERATE = "generate"
    DETECT = "detect"
    SEGMENT = "segment"


class Activation(StrEnum):
    """What makes scores of a model's logits: over all classes, or each by itself."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class Media(StrEnum):
    """What a raw input holds."""

    TEXT = "text"
    PICTURE = "picture"
    SOUND = "sound"


@dataclass(frozen=True, slots=True)
class RawInput:
    """An input that clients send as it is, one element of BYTES for each row; the server makes tensors of it.

    A text is UTF-8; a picture or a sound is the content of its file. An optional one may be left out: the second of two
    texts.
    """

    name: str
    media: Media
    optional: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a model is for, as far as that is known; nothing is for one that was built from a module of tensors.

    It may have `raw` inputs, which clients send in place of the model's own. `labels` are the names of its classes, in
    the order of its logits; `activation` makes scores of these.
    """

    task: Task | None = None
    raw: tuple[RawInput, ...] = ()
    labels: tuple[str, ...] = ()
    activation: Activation | None = None

    @property
    def reads_texts(self) -> bool:
        """Whether a raw input is a text."""
        return any(raw.media is Media.TEXT for raw in self.raw)


NOTHING_KNOWN = About()


@dataclass(frozen=True, slots=True)
class Promised:
    """The promise for all answers of a model: a share of them, `fidelity`, is as in full precision.

    That means the same class of largest value or, with a `cosine`, a vector within that cosine of the full network's.
    """

    fidelity: float
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a model of a step takes. `sources` are the names of the tensors, in the order of its inputs.

    They are `image` for a tensor of the client, `gate.output` for one of another step, `cars.inputs.image` for one that
    is computed from these first. `dims` are the sizes of its named dimensions, in terms of the query's; those left out
    have the largest size that the model allows.
    """

    sources: tuple[str, ...] = ()
    dims: tuple[tuple[str, Size], ...] = ()


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A step of a query as clients know it: its name, the models that may answer it, and the steps it comes `after`.

    `inputs` are those of each of its models.
    """

    name: str
    models: tuple[str, ...]
    after: tuple[int, ...] = ()
    inputs: tuple[StepInputs, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Tensors that a query takes, made of its raw inputs as `model` makes its own.

    `raw` has pairs of what the model reads and the query's input that it reads there; `makes` those of the model's
    inputs and the query's.
    """

    model: str
    raw: tuple[tuple[str, str], ...]
    makes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as clients and the scheduler know it. A query looks like one whose stages are its `steps`.

    Where a query has raw inputs, all of its tensors are made of them by its `reads`, before its first step.

    `lookups` are the stages (counted from 0, never the last) behind which a learned cache may answer. `kinds` are the
    kinds of the stages; empty where all run once.

    `dims` are the named dimensions, whose sizes differ from row to row. Rows of different sizes share a batch if the
    model `pads`: padding after a row does not change its answer. If it `packs` too, most of the padding is not computed
    (`program.packing`), so that the time of a batch depends on the sum of its lengths.

    `promised` is for a network in less than full precision without lookups; None: its answers are its own in full
    precision, or nothing was declared and shown. With lookups, each request has its own promise.
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
    dims: tuple[Dim, ...] = ()
    pads: bool = False
    packs: bool = False
    about: About = NOTHING_KNOWN
    reads: tuple[Read, ...] = ()
    promised: Promised | None = None

    @property
    def public_name(self) -> str:
        """The name that clients know it by: without the version, where several are served (`domain.split`)."""
        return public_name(self.name)

    @property
    def written(self) -> TensorSpec | None:
        """The output whose tokens are those of a text, which clients get too; None if there is none."""
        return self.outputs[0] if self.about.task is Task.GENERATE and self.about.raw else None

    @property
    def one_size(self) -> bool:
        """Whether all rows of a batch must be of equal sizes: they are padded along one dimension, or not at all."""
        return bool(self.dims) and not (self.pads and len(self.dims) == 1)

    def dims_of(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the sizes of the named dimensions in a row with inputs of these shapes, by input.

        Raises `ValueError`, which says what is wrong, for shapes that no row has.
        """
        found: dict[str, int] = {}
        known = {dim.name: dim for dim in self.dims}
        for tensor in self.inputs:
            shape, sizes = tuple(shapes[tensor.name]), tensor.sizes or tensor.shape
            wanted = f"[{', '.join(map(str, sizes))}]"
            if len(shape) != len(sizes) or any(a != b for a, b in zip(shape, sizes, strict=True) if isinstance(b, int)):
                raise ValueError(f"{tensor.name!r} has shape {list(shape)}: it must be {wanted}")
            for size, name in zip(shape, sizes, strict=True):
                if isinstance(name, int):
                    continue
                if not known[name].allows(size):
                    raise ValueError(f"{tensor.name!r} has {name}={size}: it must be {known[name].range()}")
                if found.setdefault(name, size) != size:
                    raise ValueError(f"{tensor.name!r} has {name}={size}, another input {found[name]}: give one size")
        return found

    def kind(self, stage: int) -> StageKind:
        """Return how often a stage runs."""
        return self.kinds[stage] if self.kinds else StageKind.STATIC
