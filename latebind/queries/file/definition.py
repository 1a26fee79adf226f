"""A query file: its keys, checked against the models that it names, and its expressions put together. Pure.

`docs/query-files.md` describes the file, `language` has its expressions. First come the steps, `[nodes.NAME]`, then
what the names in expressions mean, then all of it together: types, that everything is used, and an order to run in.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from latebind.domain.errors import QueryError
from latebind.domain.model import ITEM_BYTES, ModelSpec, StageKind, StepSpec, TensorSpec
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.queries import PLANNERS
from latebind.queries.file.language import Parsed, parse
from latebind.queries.file.source import Source
from latebind.queries.file.wiring import (
    INPUT,
    DefinedQuery,
    Kind,
    Ref,
    Tensor,
    Wiring,
    all_of,
    needs,
    nodes_of,
    refs_in,
)
from latebind.repository.directory import NAME

ENDING = ".query.toml"
LONGEST_MS = 3_600_000.0
MOST = 64  # entries of a table or an array
MOST_BYTES = 1 << 28  # of one tensor that clients send
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # a name that expressions can use

Entries = Annotated[dict[str, object], Meta(max_length=MOST)]
Texts = Annotated[tuple[str, ...], Meta(max_length=MOST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Size = Annotated[int, Meta(ge=1)]


class WrittenInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A table `[inputs.NAME]`."""

    dtype: str | None = None
    shape: Annotated[tuple[Size, ...], Meta(max_length=MOST)] | None = None


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
    conditions: Entries = {}
    nodes: Entries = {}
    outputs: Entries = {}


def read_query(path: Path, models: Mapping[str, ModelSpec], accuracies: Mapping[str, float]) -> DefinedQuery:
    """Return the query in a file, checked against `models`; `accuracies` are those measured by their builds.

    Raises `QueryError` as `FILE:LINE: what is wrong, and what to do`.
    """
    source, written = _opened(path)
    name = query_name(path)
    if name in models:
        raise source.error(f"there is a model {name} as well: give the query's file another name")
    _check_names(source, written)
    written_conditions = {one: _parsed(source, text, "conditions", one) for one, text in written.conditions.items()}
    found = {one: _step(source, one, value, models, accuracies) for one, value in written.nodes.items()}
    behind = {
        one: {other for other in condition.names if other in written_conditions}
        for one, condition in written_conditions.items()
    }
    conditions_in_order = _in_order(source, "conditions", behind)
    steps = {one: found[one] for one in _in_order(source, "nodes", _waited_for(source, found, written_conditions))}
    scope = Scope(steps, _inputs(source, written, steps), {})
    for one in conditions_in_order:
        with source.about("conditions", one):
            scope.conditions[one] = written_conditions[one].condition(scope)
    inputs = tuple(_step_inputs(source, step, scope) for step in steps.values())
    conditions = tuple(_condition(source, step, scope) for step in steps.values())
    outputs = _outputs(source, written, scope)
    _check_used(source, scope, inputs, conditions, list(outputs.values()))
    nodes = tuple(
        _node(source, step, scope, taken, condition)
        for step, taken, condition in zip(steps.values(), inputs, conditions, strict=True)
    )
    spec = ModelSpec(
        name=name,
        version=written.version,
        inputs=tuple(scope.inputs.values()),
        outputs=tuple(TensorSpec(each, one.kind.dtype, one.kind.shape) for each, one in outputs.items()),
        stages=len(nodes),
        max_batch=min(model.max_batch for step in steps.values() for model in step.models),
        steps=tuple(
            StepSpec(node.name, node.models, node.after, _origins(step, taken, scope))
            for node, step, taken in zip(nodes, steps.values(), inputs, strict=True)
        ),
    )
    query = Query(spec, nodes, _planner(source, written), (written.deadline_ms or 0.0) / 1e3)
    return DefinedQuery(query, Wiring(inputs, conditions, tuple(outputs.values())))


def model_names(path: Path) -> tuple[str, ...]:
    """Return the models that a query file names, each once, without checking the rest of the file."""
    source, written = _opened(path)
    nodes = [source.typed(WrittenNode, node, "nodes", name) for name, node in written.nodes.items()]
    return tuple(dict.fromkeys(model for node in nodes for model in node.models))


def query_name(path: Path) -> str:
    """Return the name of the query in a file, which is the file's name. Raises `QueryError` if it is not valid."""
    name = path.name.removesuffix(ENDING)
    if name == path.name or not NAME.fullmatch(name):
        wanted = "letters, digits, '.', '_' and '-', beginning with a letter or digit, 128 at most"
        raise QueryError(f"{path} is no name for a query: call it NAME{ENDING}, with a NAME of {wanted}")
    return name


def _opened(path: Path) -> tuple[Source, WrittenQuery]:
    source = Source.read(path)
    written = source.typed(WrittenQuery, source.values)
    if not written.nodes:
        raise source.error('there are no nodes: write one as [nodes.NAME] with models = ["..."]')
    return source, written


def _planner(source: Source, written: WrittenQuery) -> PlannerConfig:
    if written.planner not in PLANNERS:
        raise source.error(f"there is no planner {written.planner!r:.100}: take {', '.join(PLANNERS)}", "planner")
    return PlannerConfig(written.planner, written.replan)


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its expressions parsed. `inputs` are in the order of its models' inputs."""

    name: str
    models: tuple[ModelSpec, ...]
    accuracies: tuple[float, ...]
    inputs: tuple[Parsed, ...]
    when: Parsed | None
    after: tuple[str, ...]

    @property
    def takes(self) -> tuple[TensorSpec, ...]:
        """The inputs of its models."""
        return self.models[0].inputs

    @property
    def gives(self) -> dict[str, Kind]:
        """The outputs of its models, by name and in order."""
        return {spec.name: Kind(spec.dtype, spec.shape) for spec in self.models[0].outputs}


def _step(
    source: Source, name: str, value: object, models: Mapping[str, ModelSpec], measured: Mapping[str, float]
) -> Step:
    """Return the step in the table `[nodes.NAME]`. Raises `QueryError` with the line."""
    written = source.typed(WrittenNode, value, "nodes", name)
    chosen = _models(source, name, written.models, models)
    inputs = {one: _parsed(source, text, "nodes", name, "inputs", one) for one, text in written.inputs.items()}
    known = [spec.name for spec in chosen[0].inputs]
    for one in written.inputs:
        if one not in known:
            where = "nodes", name, "inputs", one
            raise source.error(f"{'.'.join(where):.200} is not known here: take {', '.join(known)}", *where)
    for one in known:
        if one not in inputs and not one.isidentifier():
            raise source.error(
                f"nodes.{name}.inputs has nothing for {one!r}: say what the model is to take there", "nodes", name
            )
        inputs.setdefault(one, parse(one) if one.isidentifier() else Parsed(ast.Name(one)))
    when = None if written.when is None else _parsed(source, written.when, "nodes", name, "when")
    accuracies = _accuracies(source, name, written.accuracy, written.models, measured)
    return Step(name, chosen, accuracies, tuple(inputs[one] for one in known), when, written.after)


def _parsed(source: Source, value: object, *keys: str) -> Parsed:
    """Return the expression under these keys, parsed."""
    text = source.typed(str, value, *keys)
    with source.about(*keys):
        return parse(text)


def _models(
    source: Source, node: str, names: tuple[str, ...], models: Mapping[str, ModelSpec]
) -> tuple[ModelSpec, ...]:
    where = "nodes", node, "models"
    for place, name in enumerate(names):
        if name in names[:place]:
            raise source.error(f"{'.'.join(where)} has {name!r:.100} twice: name each once", *where)
        if name not in models:
            there = ", ".join(models) or "none"
            raise source.error(f"there is no model {name!r:.200}: there are {there:.1000}", *where)
        if any(kind is not StageKind.STATIC for kind in models[name].kinds):
            why = "a step of a query must answer in one pass"
            raise source.error(f"model {name} is a sequence model, which answers step by step: {why}", *where)
    first, *others = chosen = tuple(models[name] for name in names)
    for model in others:
        for what, ours, theirs in (("inputs", first.inputs, model.inputs), ("outputs", first.outputs, model.outputs)):
            if [spec.unlimited() for spec in ours] != [spec.unlimited() for spec in theirs]:
                told = f"{first.name} has {_told(ours)}; {model.name} has {_told(theirs)}"
                raise source.error(f"models of one node need the same {what}: {told}", *where)
    return chosen


def _told(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{spec.name} ({Kind(spec.dtype, spec.shape)}{'' if spec.padding is None else f', padded with {spec.padding}'})"
        for spec in tensors
    )


def _accuracies(
    source: Source, node: str, given: tuple[float, ...] | None, models: tuple[str, ...], measured: Mapping[str, float]
) -> tuple[float, ...]:
    if given is not None:
        if len(given) != len(models):
            told = f"accuracy has {len(given)} numbers for {len(models)} models: give one each"
            raise source.error(told, "nodes", node, "accuracy")
        return given
    unknown = [model for model in models if model not in measured]
    if unknown and len(models) > 1:
        how = "give accuracy = [...], a share for each model, or build with labelled data"
        raise source.error(f"nothing is known of how often {', '.join(unknown)} is right: {how}", "nodes", node)
    return tuple(measured.get(model, 1.0) for model in models)


@dataclass(frozen=True, slots=True)
class Scope:
    """The `inputs` of the query and its checked `conditions`, by name; `steps` in the order of the file.

    It looks up what names in expressions stand for (`language.Names`).
    """

    steps: Mapping[str, Step]
    inputs: Mapping[str, TensorSpec]
    conditions: dict[str, Tensor]

    def alone(self, name: str) -> Tensor:
        """Return the input or condition of this name."""
        if name in self.conditions:
            return self.conditions[name]
        if name in self.inputs:
            spec = self.inputs[name]
            below = spec.limit if spec.least >= 0 else None
            return Ref(INPUT, list(self.inputs).index(name), Kind(spec.dtype, spec.shape, below))
        if name in self.steps:
            outputs = ", ".join(f"{name}.{output}" for output in self.steps[name].gives)
            raise QueryError(f"{name} is a node: take one of its outputs, {outputs}")
        known = ", ".join((*self.inputs, *self.conditions)) or "none"
        raise QueryError(
            f"nothing is called {name:.100}: there are inputs and conditions {known:.500}; an input that no model "
            "takes unchanged needs its dtype and shape in [inputs]"
        )

    def of_node(self, name: str, output: str) -> Ref:
        """Return an output of a node."""
        step = self.steps.get(name)
        if step is None:
            raise QueryError(f"there is no node {name:.100}: there are {', '.join(self.steps):.500}")
        gives = step.gives
        if output not in gives:
            raise QueryError(f"{name} has no output {output!r:.100}: it has {', '.join(gives):.500}")
        return Ref(list(self.steps).index(name), list(gives).index(output), gives[output])


def _check_names(source: Source, written: WrittenQuery) -> None:
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
                raise source.error(f"{name[:200]!r} is no name: {wanted}", table, name)
            if name in known:
                told = f"{name} has two meanings: nodes, conditions and inputs need names of their own"
                raise source.error(told, table, name)
        known.update(names)


def _waited_for(source: Source, steps: Mapping[str, Step], conditions: Mapping[str, Parsed]) -> dict[str, set[str]]:
    """Return, by step, the nodes that it waits for: those in `after`, and those that its expressions lead to."""
    behind = {}
    for step in steps.values():
        for name in step.after:
            if name not in steps:
                told = f"there is no node {name!r:.100}: there are {', '.join(steps)}"
                raise source.error(told, "nodes", step.name, "after")
        led_to, more = set[str](), {name for one in (*step.inputs, step.when) if one for name in one.names}
        while more:
            led_to |= more
            more = {name for one in more if one in conditions for name in conditions[one].names} - led_to
        behind[step.name] = {*step.after, *(led_to & steps.keys())}
    return behind


def _inputs(source: Source, written: WrittenQuery, steps: Mapping[str, Step]) -> dict[str, TensorSpec]:
    """Return the inputs of the query: those that models take unchanged, or those that the file declares."""
    passed: dict[str, list[TensorSpec]] = {}
    for step in steps.values():
        for expression, spec in zip(step.inputs, step.takes, strict=True):
            name = expression.name
            if name and name not in steps and name not in written.conditions:
                passed.setdefault(name, []).append(spec)
    if written.inputs is None:
        return {name: _input(name, taken) for name, taken in passed.items()}
    return {name: _declared(source, name, value, passed.get(name, ())) for name, value in written.inputs.items()}


def _input(name: str, taken: Sequence[TensorSpec]) -> TensorSpec:
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
    )


def _declared(source: Source, name: str, value: object, taken: Sequence[TensorSpec]) -> TensorSpec:
    written, where = source.typed(WrittenInput, value, "inputs", name), ("inputs", name)
    if not taken and (written.dtype is None or written.shape is None):
        missing = "dtype" if written.dtype is None else "shape"
        told = f"inputs.{name}.{missing} is missing: no model takes {name} unchanged, so it must be said here"
        raise source.error(told, *where)
    known = _input(name, taken) if taken else TensorSpec(name, "float32", ())
    dtype = known.dtype if written.dtype is None else written.dtype
    if dtype not in ITEM_BYTES:
        raise source.error(f"inputs.{name}.dtype is {dtype!r:.50}: take {', '.join(ITEM_BYTES)}", *where, "dtype")
    spec = replace(known, dtype=dtype, shape=known.shape if written.shape is None else written.shape)
    if spec.row_bytes > MOST_BYTES:
        raise source.error(f"{name} has {spec.row_bytes} bytes: {MOST_BYTES} at most", *where, "shape")
    return spec


def _step_inputs(source: Source, step: Step, scope: Scope) -> tuple[Tensor, ...]:
    """Return the checked expression for each input of a step."""
    found, model = list[Tensor](), step.models[0].name
    for spec, parsed in zip(step.takes, step.inputs, strict=True):
        with source.about("nodes", step.name, "inputs", spec.name):
            tensor, wanted = parsed.tensor(scope), Kind(spec.dtype, spec.shape)
            if not tensor.kind.fits(wanted):
                raise QueryError(f"this is {tensor.kind}, and {model} takes {wanted}: cast, resize or reshape")
            of_client = isinstance(tensor, Ref) and tensor.node == INPUT
            given = list(scope.inputs.values())[tensor.place] if of_client and isinstance(tensor, Ref) else spec
            if given.padding != spec.padding:
                padded = f"rows are padded with {given.padding} for one model and {spec.padding} for {model}"
                raise QueryError(f"{given.name}: {padded}; give the query an input for each")
        found.append(tensor)
    return tuple(found)


def _condition(source: Source, step: Step, scope: Scope) -> Tensor | None:
    if step.when is None:
        return None
    with source.about("nodes", step.name, "when"):
        return step.when.condition(scope)


def _outputs(source: Source, written: WrittenQuery, scope: Scope) -> dict[str, Tensor]:
    if not written.outputs:
        raise source.error('there are no outputs: write one under [outputs] as NAME = "node.output"', "outputs")
    outputs = {}
    for name, text in written.outputs.items():
        if not NAME.fullmatch(name):
            told = f"{name[:200]!r} is no name of an output: use letters, digits, '.', '_' and '-'"
            raise source.error(told, "outputs", name)
        parsed = _parsed(source, text, "outputs", name)
        with source.about("outputs", name):
            outputs[name] = parsed.tensor(scope)
            needs(outputs[name])
    return outputs


def _check_used(
    source: Source,
    scope: Scope,
    inputs: Sequence[Sequence[Tensor]],
    conditions: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
) -> None:
    """Raise `QueryError` for a node that no output depends on, and for an input that nothing reads."""
    used, found = set[int](), nodes_of(*outputs)
    while found - used:
        used |= found
        found = {one for number in used for one in nodes_of(*inputs[number], conditions[number])}
    for number, name in enumerate(scope.steps):
        if number not in used:
            what = "name it in an output, or in what leads to one, or take the node out"
            raise source.error(f"nothing comes of node {name}: {what}", "nodes", name)
    each = (*outputs, *(one for some in inputs for one in some), *conditions)
    read = {ref.place for one in each if one is not None for ref in refs_in(one) if ref.node == INPUT}
    for place, name in enumerate(scope.inputs):
        if place not in read:
            raise source.error(f"nothing reads the input {name}: use it or take it out", "inputs", name)


def _node(source: Source, step: Step, scope: Scope, inputs: Sequence[Tensor], condition: Tensor | None) -> Node:
    every = (*inputs, *([] if condition is None else [condition]))
    with source.about("nodes", step.name, "inputs"):
        groups = all_of([needs(one) for one in every])
    names = list(scope.steps)
    return Node(
        name=step.name,
        models=tuple(model.name for model in step.models),
        accuracies=step.accuracies,
        after=tuple(sorted(nodes_of(*every).union(map(names.index, step.after)))),
        needs=tuple(sorted(tuple(sorted(group)) for group in groups)),
        guarded=condition is not None,
    )


def _origins(step: Step, inputs: Sequence[Tensor], scope: Scope) -> tuple[str, ...]:
    """Name unchanged tensors after their sources, and computed ones after their keys in the step."""
    found, steps = list[str](), list(scope.steps.values())
    for spec, tensor in zip(step.takes, inputs, strict=True):
        if not isinstance(tensor, Ref):
            found.append(f"{step.name}.inputs.{spec.name}")
        elif tensor.node == INPUT:
            found.append(list(scope.inputs)[tensor.place])
        else:
            other = steps[tensor.node]
            found.append(f"{other.name}.{list(other.gives)[tensor.place]}")
    return tuple(found)


def _in_order(source: Source, table: str, behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return the keys of a table, each after all that it waits for (`behind`), else in their own order.

    Raises `QueryError` for a cycle.
    """
    try:
        TopologicalSorter(behind).prepare()
    except CycleError as error:
        around = error.args[1]
        told = f"{table} go in a circle, {' -> '.join(around)}: take one of these references out"
        raise source.error(told, table, around[0]) from None
    ordered: dict[str, None] = {}
    while len(ordered) < len(behind):
        ordered[next(one for one in behind if one not in ordered and ordered.keys() >= set(behind[one]))] = None
    return list(ordered)
