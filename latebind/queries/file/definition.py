"""A query file: its keys, checked against the models that it names, and its expressions put together. Pure.

`docs/query-files.md` describes the file, `language` has its expressions. First come the steps, `[nodes.NAME]`, then
what the names in expressions mean, then all of it together: types, that everything is used, and an order to run in.
"""

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from latebind.domain.errors import QueryError
from latebind.domain.model import ITEM_BYTES, ModelSpec, StageKind, StepSpec, TensorSpec
from latebind.domain.query import Node, PlannerConfig, Query
from latebind.queries import PLANNERS
from latebind.queries.file.language import Names, Parsed, parse
from latebind.queries.file.source import Source, Table
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
    renumbered,
)
from latebind.repository.directory import NAME

ENDING = ".query.toml"
LONGEST_MS = 3_600_000.0
KEYS = ("deadline_ms", "planner", "replan", "price", "version", "inputs", "conditions", "nodes", "outputs")
STEP_KEYS = ("models", "accuracy", "inputs", "when", "after")
MOST_BYTES = 1 << 28  # of one tensor that clients send


def read_query(path: Path, models: Mapping[str, ModelSpec], accuracies: Mapping[str, float]) -> DefinedQuery:
    """Return the query in a file, checked against `models`; `accuracies` are those measured by their builds.

    Raises `QueryError` as `FILE:LINE: what is wrong, and what to do`.
    """
    root, tables = _opened(path)
    name = query_name(path)
    if name in models:
        raise root.error(f"there is a model {name} as well: give the query's file another name")
    steps = {node: _step(tables.table(node), node, models, accuracies) for node in tables.names()}
    scope = _scope(root, steps)
    inputs = {step.name: _step_inputs(step, scope) for step in steps.values()}
    conditions: dict[str, Tensor | None] = dict.fromkeys(steps)
    for step in steps.values():
        if step.when is not None:
            with step.table.about("when"):
                conditions[step.name] = step.when.condition(scope.names())
    outputs = _outputs(root, scope)
    _check_used(root, scope, inputs, conditions, outputs)

    # From here on nodes have the order in which they run, and expressions its numbers.
    ordered = _in_running_order(steps, inputs, conditions)
    numbers = [ordered.index(step) for step in steps.values()]
    wiring = Wiring(
        inputs=tuple(tuple(renumbered(one, numbers) for one in inputs[step.name]) for step in ordered),
        conditions=tuple(
            None if (one := conditions[step.name]) is None else renumbered(one, numbers) for step in ordered
        ),
        outputs=tuple(renumbered(one, numbers) for one in outputs.values()),
    )
    nodes = tuple(
        _node(step, ordered, taken, condition)
        for step, taken, condition in zip(ordered, wiring.inputs, wiring.conditions, strict=True)
    )
    sources = [
        tuple(_source(step, *pair, ordered, scope) for pair in zip(step.takes, taken, strict=True))
        for step, taken in zip(ordered, wiring.inputs, strict=True)
    ]
    version = root.text("version") if "version" in root else "1"
    if not version.isdecimal() or not version.isascii() or len(version) > 18:
        raise root.error(f"version is {version!r:.50}: give a number as a text", "version")
    milliseconds = root.number("deadline_ms") if "deadline_ms" in root else 0.0
    if "deadline_ms" in root and not 0.0 < milliseconds <= LONGEST_MS:
        wanted = f"give more than 0 and at most {LONGEST_MS:g}"
        raise root.error(f"deadline_ms is {milliseconds:g}: {wanted}", "deadline_ms")
    spec = ModelSpec(
        name=name,
        version=version,
        inputs=tuple(scope.inputs.values()),
        outputs=tuple(TensorSpec(each, one.kind.dtype, one.kind.shape) for each, one in outputs.items()),
        stages=len(nodes),
        max_batch=min(model.max_batch for step in ordered for model in step.models),
        steps=tuple(
            StepSpec(node.name, node.models, node.after, taken) for node, taken in zip(nodes, sources, strict=True)
        ),
    )
    return DefinedQuery(Query(spec, nodes, _planner(root), milliseconds / 1e3), wiring)


def model_names(path: Path) -> tuple[str, ...]:
    """Return the models that a query file names, each once, without checking the rest of the file."""
    _, nodes = _opened(path)
    return tuple(dict.fromkeys(model for node in nodes.values for model in nodes.table(node).texts("models")))


def query_name(path: Path) -> str:
    """Return the name of the query in a file, which is the file's name. Raises `QueryError` if it is not valid."""
    name = path.name.removesuffix(ENDING)
    if name == path.name or not NAME.fullmatch(name):
        wanted = "letters, digits, '.', '_' and '-', beginning with a letter or digit, 128 at most"
        raise QueryError(f"{path} is no name for a query: call it NAME{ENDING}, with a NAME of {wanted}")
    return name


def _opened(path: Path) -> tuple[Table, Table]:
    """Return the whole of a file, and its table of nodes."""
    source = Source.read(path)
    root = Table(source, (), source.values)
    root.check_keys(KEYS)
    nodes = root.table("nodes")
    if not nodes.values:
        raise nodes.error('there are no nodes: write one as [nodes.NAME] with models = ["..."]')
    return root, nodes


def _planner(root: Table) -> PlannerConfig:
    usual = PlannerConfig()
    name = root.text("planner") if "planner" in root else usual.name
    if name not in PLANNERS:
        raise root.error(f"there is no planner {name!r:.100}: take {', '.join(PLANNERS)}", "planner")
    price = root.number("price") if "price" in root else usual.price
    if price is not None and price < 0.0:
        raise root.error(f"price is {price:g} of accuracy a second: give 0 or more", "price")
    if price and name != usual.name:
        raise root.error(f"price is only known to the planner {usual.name}, not to {name}: leave one out", "price")
    return PlannerConfig(name, root.flag("replan") if "replan" in root else usual.replan, price)


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was written, field by key of its table. `inputs` are in the order of its models' inputs."""

    table: Table
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


def _step(table: Table, name: str, models: Mapping[str, ModelSpec], measured: Mapping[str, float]) -> Step:
    """Return the step in this table. Raises `QueryError` with the line."""
    table.check_keys(STEP_KEYS)
    chosen = _models(table, models)
    inputs = table.table("inputs")
    known = [spec.name for spec in chosen[0].inputs]
    inputs.check_keys(known)
    return Step(
        table=table,
        name=name,
        models=chosen,
        accuracies=_accuracies(table, chosen, measured),
        inputs=tuple(_expression(inputs, one) if one in inputs else _same_name(table, one) for one in known),
        when=_expression(table, "when") if "when" in table else None,
        after=table.texts("after") if "after" in table else (),
    )


def _expression(table: Table, key: str) -> Parsed:
    """Return the expression under a key, parsed."""
    text = table.text(key)
    with table.about(key):
        return parse(text)


def _models(table: Table, models: Mapping[str, ModelSpec]) -> tuple[ModelSpec, ...]:
    names = table.texts("models")
    if not names:
        raise table.error(f"{table.title('models')} is empty: name a model", "models")
    for name in names:
        if name not in models:
            there = ", ".join(models) or "none"
            raise table.error(f"there is no model {name!r:.200}: there are {there:.1000}", "models")
        if any(kind is not StageKind.STATIC for kind in models[name].kinds):
            why = "a step of a query must answer in one pass"
            raise table.error(f"model {name} is a sequence model, which answers step by step: {why}", "models")
    chosen = tuple(models[name] for name in names)
    for model in chosen[1:]:
        for what, ours, theirs in (
            ("inputs", chosen[0].inputs, model.inputs),
            ("outputs", chosen[0].outputs, model.outputs),
        ):
            if [spec.unlimited() for spec in ours] != [spec.unlimited() for spec in theirs]:
                told = f"{chosen[0].name} has {_told(ours)}; {model.name} has {_told(theirs)}"
                raise table.error(f"models of one node need the same {what}: {told}", "models")
    return chosen


def _told(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{spec.name} ({Kind(spec.dtype, spec.shape)}{'' if spec.padding is None else f', padded with {spec.padding}'})"
        for spec in tensors
    )


def _accuracies(table: Table, models: tuple[ModelSpec, ...], measured: Mapping[str, float]) -> tuple[float, ...]:
    if "accuracy" in table:
        given = table.numbers("accuracy")
        if len(given) != len(models):
            raise table.error(f"accuracy has {len(given)} numbers for {len(models)} models: give one each", "accuracy")
        for share in given:
            if not 0.0 <= share <= 1.0:
                raise table.error(f"accuracy has {share:g} in it: give shares from 0 to 1", "accuracy")
        return given
    unknown = [model.name for model in models if model.name not in measured]
    if unknown and len(models) > 1:
        how = "give accuracy = [...], a share for each model, or build with labelled data"
        raise table.error(f"nothing is known of how often {', '.join(unknown)} is right: {how}")
    return tuple(measured.get(model.name, 1.0) for model in models)


def _same_name(table: Table, name: str) -> Parsed:
    """Return the expression for an input that is left out: the query's input of the same name."""
    if not name.isidentifier():
        raise table.error(f"{table.title('inputs')} has nothing for {name!r}: say what the model is to take there")
    return parse(name)


@dataclass(frozen=True, slots=True)
class Scope:
    """The `inputs` of the query and its checked `conditions`, by name; `steps` in the order of the file."""

    steps: Mapping[str, Step]
    inputs: Mapping[str, TensorSpec]
    conditions: Mapping[str, Tensor]

    def names(self) -> Names:
        """Return the functions that look names up for expressions."""
        return Names(self._alone, self._of_node)

    def _alone(self, name: str) -> Tensor:
        if name in self.conditions:
            return self.conditions[name]
        if name in self.inputs:
            spec = self.inputs[name]
            return Ref(
                INPUT,
                list(self.inputs).index(name),
                Kind(spec.dtype, spec.shape, spec.limit if spec.least >= 0 else None),
            )
        if name in self.steps:
            outputs = ", ".join(f"{name}.{output}" for output in self.steps[name].gives)
            raise QueryError(f"{name} is a node: take one of its outputs, {outputs}")
        known = ", ".join((*self.inputs, *self.conditions)) or "none"
        raise QueryError(
            f"nothing is called {name:.100}: there are inputs and conditions {known:.500}; an input that no model "
            "takes unchanged needs its dtype and shape in [inputs]"
        )

    def _of_node(self, name: str, output: str) -> Ref:
        step = self.steps.get(name)
        if step is None:
            raise QueryError(f"there is no node {name:.100}: there are {', '.join(self.steps):.500}")
        gives = step.gives
        if output not in gives:
            raise QueryError(f"{name} has no output {output!r:.100}: it has {', '.join(gives):.500}")
        return Ref(list(self.steps).index(name), list(gives).index(output), gives[output])


def _scope(root: Table, steps: Mapping[str, Step]) -> Scope:
    """Return what the names in a query file refer to. Raises `QueryError` with the line."""
    written, declared = root.table("conditions"), root.table("inputs")
    for table in (written, declared):
        for name in table.names():
            if name in steps or (table is declared and name in written):
                raise table.error(
                    f"{name} has two meanings: nodes, conditions and inputs need names of their own", name
                )
    parsed = {name: _expression(written, name) for name in written.values}
    passed = _passed(steps, parsed)
    if "inputs" in root:
        inputs = {name: _declared(declared, name, passed.get(name, ())) for name in declared.values}
    else:
        inputs = {name: _input(name, taken) for name, taken in passed.items()}
    behind = {
        name: [one.id for one in ast.walk(condition.body) if isinstance(one, ast.Name) and one.id in parsed]
        for name, condition in parsed.items()
    }
    if around := _circle(behind):
        raise written.error(f"conditions go in a circle, {' -> '.join(around)}: each may only name others", around[0])
    conditions: dict[str, Tensor] = {}
    scope = Scope(steps, inputs, conditions)
    for name in _in_order(behind):
        with written.about(name):
            conditions[name] = parsed[name].condition(scope.names())
    return scope


def _passed(steps: Mapping[str, Step], conditions: Mapping[str, Parsed]) -> dict[str, list[TensorSpec]]:
    """Return, by name, the inputs of models that get an input of the query unchanged."""
    passed: dict[str, list[TensorSpec]] = {}
    for step in steps.values():
        for expression, spec in zip(step.inputs, step.takes, strict=True):
            name = expression.name
            if name and name not in steps and name not in conditions:
                passed.setdefault(name, []).append(spec)
    return passed


def _input(name: str, taken: Sequence[TensorSpec]) -> TensorSpec:
    first = taken[0]
    limited = [spec for spec in taken if spec.limit is not None]
    sizes = [spec.largest for spec in taken if spec.largest is not None]
    return TensorSpec(
        name,
        first.dtype,
        first.shape,
        first.padding,
        min((spec.limit for spec in limited if spec.limit is not None), default=None),
        max((spec.least for spec in limited), default=0),
        min(sizes, default=None),
    )


def _declared(declared: Table, name: str, taken: Sequence[TensorSpec]) -> TensorSpec:
    table = declared.table(name)
    table.check_keys(("dtype", "shape"))
    for key in ("dtype", "shape"):
        if not taken and key not in table:
            raise table.error(
                f"{table.title(key)} is missing: no model takes {name} unchanged, so it must be said here"
            )
    known = _input(name, taken) if taken else TensorSpec(name, "float32", ())
    dtype = table.text("dtype") if "dtype" in table else known.dtype
    if dtype not in ITEM_BYTES:
        raise table.error(f"{table.title('dtype')} is {dtype!r:.50}: take {', '.join(ITEM_BYTES)}", "dtype")
    shape = table.wholes("shape") if "shape" in table else known.shape
    spec = replace(known, dtype=dtype, shape=shape)
    if spec.row_bytes > MOST_BYTES:
        raise table.error(f"{name} has {spec.row_bytes} bytes: {MOST_BYTES} at most", "shape")
    return spec


def _step_inputs(step: Step, scope: Scope) -> list[Tensor]:
    """Return the checked expression for each input of a step."""
    table, found = step.table.table("inputs"), list[Tensor]()
    for spec, parsed in zip(step.takes, step.inputs, strict=True):
        with table.about(spec.name):
            tensor, model = parsed.tensor(scope.names()), step.models[0].name
            if not tensor.kind.fits(Kind(spec.dtype, spec.shape)):
                wanted = Kind(spec.dtype, spec.shape)
                raise QueryError(f"this is {tensor.kind}, and {model} takes {wanted}: cast, resize or reshape")
            of_client = isinstance(tensor, Ref) and tensor.node == INPUT
            given = list(scope.inputs.values())[tensor.place] if of_client and isinstance(tensor, Ref) else spec
            if given.padding != spec.padding:
                padded = f"rows are padded with {given.padding} for one model and {spec.padding} for {model}"
                raise QueryError(f"{given.name}: {padded}; give the query an input for each")
        found.append(tensor)
    return found


def _outputs(root: Table, scope: Scope) -> dict[str, Tensor]:
    table = root.table("outputs")
    if not table.values:
        raise table.error('there are no outputs: write one under [outputs] as NAME = "node.output"')
    outputs = {}
    for name in table.values:
        if not NAME.fullmatch(name):
            raise table.error(f"{name[:200]!r} is no name of an output: use letters, digits, '.', '_' and '-'", name)
        parsed = _expression(table, name)
        with table.about(name):
            outputs[name] = parsed.tensor(scope.names())
            needs(outputs[name])
    return outputs


def _check_used(
    root: Table,
    scope: Scope,
    inputs: Mapping[str, Sequence[Tensor]],
    conditions: Mapping[str, Tensor | None],
    outputs: Mapping[str, Tensor],
) -> None:
    """Raise `QueryError` for a node that no output depends on, and for an input that nothing reads."""
    names, used = list(scope.steps), set[int]()
    found = nodes_of(*outputs.values())
    while found - used:
        used |= found
        found = {one for number in used for one in nodes_of(*inputs[names[number]], conditions[names[number]])}
    for number, step in enumerate(scope.steps.values()):
        if number not in used:
            what = "name it in an output, or in what leads to one, or take the node out"
            raise step.table.error(f"nothing comes of node {step.name}: {what}")
    each = [*outputs.values(), *(one for some in inputs.values() for one in some), *conditions.values()]
    read = {ref.place for one in each if one is not None for ref in refs_in(one) if ref.node == INPUT}
    for place, name in enumerate(scope.inputs):
        if place not in read:
            raise root.table("inputs").error(f"nothing reads the input {name}: use it or take it out", name)


def _in_running_order(
    steps: Mapping[str, Step], inputs: Mapping[str, Sequence[Tensor]], conditions: Mapping[str, Tensor | None]
) -> list[Step]:
    """Return the steps, each after all that it waits for, else in the order of the file."""
    names, behind = list(steps), {}
    for step in steps.values():
        for name in step.after:
            if name not in names:
                raise step.table.error(f"there is no node {name!r:.100}: there are {', '.join(names)}", "after")
        behind[step.name] = {*step.after, *(names[i] for i in nodes_of(*inputs[step.name], conditions[step.name]))}
    if around := _circle(behind):
        cut = "take one of these edges out"
        raise steps[around[0]].table.error(f"nodes go in a circle, {' -> '.join(around)}: {cut}")
    return [steps[name] for name in _in_order(behind)]


def _node(step: Step, ordered: Sequence[Step], inputs: Sequence[Tensor], condition: Tensor | None) -> Node:
    every = (*inputs, *([] if condition is None else [condition]))
    with step.table.about("inputs"):
        groups = all_of([needs(one) for one in every])
    numbers = {one.name: number for number, one in enumerate(ordered)}
    return Node(
        name=step.name,
        models=tuple(model.name for model in step.models),
        accuracies=step.accuracies,
        after=tuple(sorted(nodes_of(*every) | {numbers[name] for name in step.after})),
        needs=tuple(sorted(tuple(sorted(group)) for group in groups)),
        guarded=condition is not None,
    )


def _source(step: Step, spec: TensorSpec, tensor: Tensor, ordered: Sequence[Step], scope: Scope) -> str:
    """Name an unchanged tensor after its source, and a computed one after its key in the step."""
    if not isinstance(tensor, Ref):
        return f"{step.name}.inputs.{spec.name}"
    if tensor.node == INPUT:
        return list(scope.inputs)[tensor.place]
    other = ordered[tensor.node]
    return f"{other.name}.{list(other.gives)[tensor.place]}"


def _circle(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return a cycle of keys, each of which waits for the one before, with the first repeated at the end; else [].

    `behind` has, for each key, the keys that it waits for.
    """
    try:
        TopologicalSorter({one: tuple(others) for one, others in behind.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _in_order(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return the keys, each after all that it waits for, else in their own order. There must be no cycle."""
    ordered: dict[str, None] = {}
    while len(ordered) < len(behind):
        ordered[next(one for one in behind if one not in ordered and ordered.keys() >= set(behind[one]))] = None
    return list(ordered)
