"""The tables of a query file as written, and checks of each by itself. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Annotated, Literal

from msgspec import Meta, Struct

from latebind.domain.model import COMPUTED_DTYPES, Media, ModelSpec, StageKind, TensorSpec
from latebind.domain.query import PlannerConfig
from latebind.domain.sizes import Dim
from latebind.domain.wording import instead
from latebind.queries.file.source import Source
from latebind.queries.file.wiring import Kind

LONGEST_MS = 3_600_000.0
MOST = 64  # entries of a table or an array
MOST_BYTES = 1 << 28  # of one tensor that clients send
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # a name that expressions can use

Entries = Annotated[dict[str, object], Meta(max_length=MOST)]
Texts = Annotated[tuple[str, ...], Meta(max_length=MOST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Side = Annotated[int, Meta(ge=1)] | str  # a name of a dimension


class WrittenInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[inputs.NAME]`."""

    dtype: str | None = None
    shape: Annotated[tuple[Side, ...], Meta(max_length=MOST)] | None = None
    kind: str | None = None  # of a raw input: text, picture or sound


class WrittenNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[nodes.NAME]`."""

    models: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST)]
    accuracy: Annotated[tuple[Share, ...], Meta(max_length=MOST)] | None = None
    inputs: Annotated[dict[str, str], Meta(max_length=MOST)] = {}
    when: str | None = None
    after: Texts = ()


class WrittenQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The file as a whole; what its tables hold is read table by table, so that errors know their lines."""

    deadline_ms: Annotated[float, Meta(gt=0.0, le=LONGEST_MS)] | None = None
    planner: str = PlannerConfig().name
    replan: bool = True
    version: Annotated[str, Meta(pattern=r"^[0-9]{1,18}$")] = "1"
    inputs: Entries | None = None
    dims: Entries = {}
    conditions: Entries = {}
    nodes: Entries = {}
    outputs: Entries = {}


def models_of(
    source: Source, node: str, names: tuple[str, ...], models: Mapping[str, ModelSpec]
) -> tuple[ModelSpec, ...]:
    """Return the models of a node. Raises `QueryError` for one that is not there or that no query can have."""
    where = "nodes", node, "models"
    for place, name in enumerate(names):
        if name in names[:place]:
            raise source.error(f"{'.'.join(where)} has {name!r:.100} twice: name each once", *where)
        if name not in models:
            known = ", ".join(models) or "none"
            raise source.error(f"there is no model {name!r:.200}: there are {known:.1000}", *where)
        if any(kind is not StageKind.STATIC for kind in models[name].kinds):
            reason = "a step of a query must answer in one pass"
            raise source.error(f"model {name} is a sequence model, which answers step by step: {reason}", *where)
        tensors = (*models[name].inputs, *models[name].outputs)
        if any(spec.dtype not in COMPUTED_DTYPES for spec in tensors):
            message = f"queries compute only with {', '.join(COMPUTED_DTYPES)}"
            raise source.error(f"model {name} has tensors of another dtype ({_described(tensors)}): {message}", *where)
    return tuple(models[name] for name in names)


def check_alike(source: Source, node: str, models: Sequence[ModelSpec], what: Literal["inputs", "outputs"]) -> None:
    """Raise `QueryError` unless the models of a node have the same inputs, or outputs."""
    each: list[tuple[TensorSpec, ...]] = [getattr(model, what) for model in models]
    for model, theirs in zip(models, each, strict=True):
        if [spec.unlimited() for spec in each[0]] != [spec.unlimited() for spec in theirs]:
            message = f"{models[0].name} has {_described(each[0])}; {model.name} has {_described(theirs)}"
            raise source.error(f"models of one node need the same {what}: {message}", "nodes", node, "models")


def _described(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{spec.name} ({Kind(spec.dtype, spec.sizes or spec.shape)}"
        f"{'' if spec.padding is None else f', padded with {spec.padding}'})"
        for spec in tensors
    )


def accuracies_of(source: Source, node: str, written: WrittenNode, measured: Mapping[str, float]) -> tuple[float, ...]:
    """Return how often the models of a node are right: as it says, or as was `measured`. Raises `QueryError`."""
    models, given = written.models, written.accuracy
    if given is not None:
        if len(given) != len(models):
            message = f"accuracy has {len(given)} numbers for {len(models)} models: give one each"
            raise source.error(message, "nodes", node, "accuracy")
        return given
    unknown = [model for model in models if model not in measured]
    if unknown and len(models) > 1:
        how = "give accuracy = [...], a share for each model, or build with labeled data"
        raise source.error(f"the accuracy of {', '.join(unknown)} is unknown: {how}", "nodes", node)
    return tuple(measured.get(model, 1.0) for model in models)


def check_names(source: Source, written: WrittenQuery) -> None:
    """Raise `QueryError` for names that expressions cannot use, or that mean two things."""
    known = set[str]()
    for table, names in (
        ("nodes", written.nodes),
        ("conditions", written.conditions),
        ("inputs", written.inputs or ()),
    ):
        for name in names:
            if not WORD.fullmatch(name) or iskeyword(name):
                wanted = "a letter or _, then letters, digits or _, 64 at most, and no word of the language"
                raise source.error(f"{name[:200]!r} is not a valid name: {wanted}", table, name)
            if name in known:
                message = f"{name} has two meanings: nodes, conditions and inputs need names of their own"
                raise source.error(message, table, name)
        known.update(names)


def input_of(name: str, taken: Sequence[TensorSpec]) -> TensorSpec:
    """Return the input of a query that models take unchanged: what all of them can take."""
    first, limits = taken[0], [(spec.limit, spec.least) for spec in taken if spec.limit is not None]
    return TensorSpec(
        name,
        first.dtype,
        first.shape,
        first.padding,
        min((limit for limit, _ in limits), default=None),
        max((least for _, least in limits), default=0),
        min((spec.largest for spec in taken if spec.largest is not None), default=None),
        first.sizes,
    )


def largest(spec: TensorSpec, dims: Sequence[Dim]) -> TensorSpec:
    """Return a tensor with the largest shape that it can have; without sizes where none varies."""
    if not spec.sizes:
        return spec
    shape = spec.shape_of({dim.name: dim.most for dim in dims})
    return replace(spec, shape=shape, sizes=() if shape == spec.sizes else spec.sizes)


def declared_input(
    source: Source, name: str, value: object, taken: Sequence[TensorSpec], dims: Mapping[str, Dim]
) -> TensorSpec:
    """Return the tensor of a table `[inputs.NAME]`, which models have `taken` unchanged. Raises `QueryError`."""
    written, where = source.typed(WrittenInput, value, "inputs", name), ("inputs", name)
    if written.kind is not None:
        known_kinds = ", ".join(Media)
        message = f'no model reads {name}: name it in a node, as inputs.{written.kind} = "{name}"'
        if written.kind not in set(Media):
            message = f"inputs.{name}.kind is {written.kind!r:.50}: take {known_kinds}, or dtype and shape for a tensor"
        raise source.error(message, *where, "kind")
    if not taken and (written.dtype is None or written.shape is None):
        missing = "dtype" if written.dtype is None else "shape"
        message = f"inputs.{name}.{missing} is missing: no model takes {name} unchanged, so it must be given here"
        raise source.error(message, *where)
    known = input_of(name, taken) if taken else TensorSpec(name, "float32", ())
    dtype = known.dtype if written.dtype is None else written.dtype
    if dtype not in COMPUTED_DTYPES:
        raise source.error(f"inputs.{name}.dtype is {dtype!r:.50}: take {', '.join(COMPUTED_DTYPES)}", *where, "dtype")
    spec = replace(known, dtype=dtype)
    if written.shape is not None:
        for size in written.shape:
            if isinstance(size, str) and size not in dims:
                message = f"no dimension is called {size!r:.50}{instead(size, dims)}; declare it in [dims]"
                raise source.error(f"inputs.{name}.shape: {message}", *where, "shape")
        spec = largest(replace(spec, shape=(), sizes=written.shape), list(dims.values()))
    if spec.row_bytes > MOST_BYTES:
        raise source.error(f"{name} has {spec.row_bytes} bytes: {MOST_BYTES} at most", *where, "shape")
    return spec
