"""What names in expressions refer to: inputs of the query, conditions, and outputs of nodes. Pure."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from latebind.domain.errors import QueryError
from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.queries.file.language import Names, Parsed
from latebind.queries.file.order import circle, in_order
from latebind.queries.file.steps import Step, read_expression
from latebind.queries.file.tables import Table
from latebind.queries.file.wiring import INPUT, Kind, Ref, Tensor

MOST_BYTES = 1 << 28  # of one tensor that clients send


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


def read_scope(root: Table, steps: Mapping[str, Step]) -> Scope:
    """Return what the names in a query file refer to. Raises `QueryError` with the line."""
    written, declared = root.table("conditions"), root.table("inputs")
    for table in (written, declared):
        for name in table.names():
            if name in steps or (table is declared and name in written):
                raise table.error(
                    f"{name} has two meanings: nodes, conditions and inputs need names of their own", name
                )
    parsed = {name: read_expression(written, name) for name in written.values}
    inputs = _inputs(declared, _passed(steps, parsed), any_name="inputs" not in root)
    behind = {name: _named(one, parsed) for name, one in parsed.items()}
    if around := circle(behind):
        raise written.error(f"conditions go in a circle, {' -> '.join(around)}: each may only name others", around[0])
    conditions: dict[str, Tensor] = {}
    scope = Scope(steps, inputs, conditions)
    for name in in_order(behind):
        with written.about(name):
            conditions[name] = parsed[name].condition(scope.names())
    return scope


def _named(condition: Parsed, conditions: Mapping[str, Parsed]) -> list[str]:
    """Return the conditions that a condition refers to, in order."""
    names = [node.id for node in ast.walk(condition.body) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(names) if name in conditions]


def _passed(steps: Mapping[str, Step], conditions: Mapping[str, Parsed]) -> dict[str, list[TensorSpec]]:
    """Return, by name, the inputs of models that get an input of the query unchanged."""
    passed: dict[str, list[TensorSpec]] = {}
    for step in steps.values():
        for expression, spec in zip(step.inputs, step.takes, strict=True):
            name = expression.name
            if name and name not in steps and name not in conditions:
                passed.setdefault(name, []).append(spec)
    return passed


def _inputs(declared: Table, passed: Mapping[str, Sequence[TensorSpec]], *, any_name: bool) -> dict[str, TensorSpec]:
    if any_name:
        return {name: _input(name, taken) for name, taken in passed.items()}
    return {name: _declared(declared, name, passed.get(name, ())) for name in declared.values}


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
