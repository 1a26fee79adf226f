"""Combines the expressions of a query file: checks types, that all are used, and finds an order to run in. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from latebind.domain.errors import QueryError
from latebind.domain.model import TensorSpec
from latebind.domain.query import Node
from latebind.queries.file.order import circle, in_order
from latebind.queries.file.scope import Scope
from latebind.queries.file.steps import Step, read_expression
from latebind.queries.file.tables import Table
from latebind.queries.file.wiring import INPUT, Kind, Ref, Tensor, Wiring, all_of, needs, nodes_of, refs_in, renumbered
from latebind.repository.directory import NAME


class Assembly:
    """The checked expressions of a query, with nodes in the order of the file, and the order in which they run."""

    def __init__(self, root: Table, steps: Mapping[str, Step], scope: Scope) -> None:
        self.scope = scope
        self._steps = list(steps.values())
        self._inputs = [_step_inputs(step, scope) for step in self._steps]
        self._conditions = [_condition(step, scope) for step in self._steps]
        self.outputs = _outputs(root, scope)
        self._check_used(root)
        self.order = self._order(list(steps))

    @property
    def steps(self) -> list[Step]:
        """The steps in the order in which they run."""
        return [self._steps[number] for number in self.order]

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes as they are planned."""
        wiring = self.wiring()
        return tuple(
            self._node(step, inputs, condition)
            for step, inputs, condition in zip(self.steps, wiring.inputs, wiring.conditions, strict=True)
        )

    def wiring(self) -> Wiring:
        """Return all expressions, with nodes numbered in the order in which they run."""
        numbers = [self.order.index(number) for number in range(len(self.order))]

        def turned(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
            return tuple(renumbered(tensor, numbers) for tensor in tensors)

        conditions = (self._conditions[number] for number in self.order)
        return Wiring(
            inputs=tuple(turned(self._inputs[number]) for number in self.order),
            conditions=tuple(None if one is None else renumbered(one, numbers) for one in conditions),
            outputs=turned(self.outputs.values()),
        )

    def sources(self) -> list[tuple[str, ...]]:
        """Return the names of the tensors that each step takes; steps in the order in which they run."""
        return [
            tuple(self._source(step, *pair) for pair in zip(step.takes, inputs, strict=True))
            for step, inputs in zip(self.steps, self.wiring().inputs, strict=True)
        ]

    def _source(self, step: Step, spec: TensorSpec, tensor: Tensor) -> str:
        """Name an unchanged tensor after its source, and a computed one after its key in the step."""
        if not isinstance(tensor, Ref):
            return f"{step.name}.inputs.{spec.name}"
        if tensor.node == INPUT:
            return list(self.scope.inputs)[tensor.place]
        other = self.steps[tensor.node]
        return f"{other.name}.{list(other.gives)[tensor.place]}"

    def _node(self, step: Step, inputs: Sequence[Tensor], condition: Tensor | None) -> Node:
        every = (*inputs, *([] if condition is None else [condition]))
        with step.table.about("inputs"):
            groups = all_of([needs(one) for one in every])
        numbers = {one.name: number for number, one in enumerate(self.steps)}
        return Node(
            name=step.name,
            models=tuple(model.name for model in step.models),
            accuracies=step.accuracies,
            after=tuple(sorted(nodes_of(*every) | {numbers[name] for name in step.after})),
            needs=tuple(sorted(tuple(sorted(group)) for group in groups)),
            guarded=condition is not None,
        )

    def _order(self, names: list[str]) -> list[int]:
        behind = {}
        for step, inputs, condition in zip(self._steps, self._inputs, self._conditions, strict=True):
            for name in step.after:
                if name not in names:
                    raise step.table.error(f"there is no node {name!r:.100}: there are {', '.join(names)}", "after")
            behind[step.name] = {*step.after, *(names[number] for number in nodes_of(*inputs, condition))}
        if around := circle(behind):
            step = self._steps[names.index(around[0])]
            raise step.table.error(f"nodes go in a circle, {' -> '.join(around)}: take one of these edges out")
        return [names.index(name) for name in in_order(behind)]

    def _check_used(self, root: Table) -> None:
        """Raise `QueryError` for a node that no output depends on, and for an input that nothing reads."""
        used: set[int] = set()
        found = nodes_of(*self.outputs.values())
        while found - used:
            used |= found
            found = {one for number in used for one in nodes_of(*self._inputs[number], self._conditions[number])}
        for number, step in enumerate(self._steps):
            if number not in used:
                what = "name it in an output, or in what leads to one, or take the node out"
                raise step.table.error(f"nothing comes of node {step.name}: {what}")
        each = [*self.outputs.values(), *(one for inputs in self._inputs for one in inputs), *self._conditions]
        read = {ref.place for one in each if one is not None for ref in refs_in(one) if ref.node == INPUT}
        for place, name in enumerate(self.scope.inputs):
            if place not in read:
                raise root.table("inputs").error(f"nothing reads the input {name}: use it or take it out", name)


def _step_inputs(step: Step, scope: Scope) -> list[Tensor]:
    return [_step_input(step, spec, place, scope) for place, spec in enumerate(step.takes)]


def _step_input(step: Step, spec: TensorSpec, place: int, scope: Scope) -> Tensor:
    table = step.table.table("inputs")
    with table.about(spec.name):
        found = step.inputs[place].tensor(scope.names())
        wanted = Kind(spec.dtype, spec.shape)
        if not found.kind.fits(wanted):
            raise QueryError(f"this is {found.kind}, and {step.models[0].name} takes {wanted}: cast, resize or reshape")
        given = list(scope.inputs.values())[found.place] if isinstance(found, Ref) and found.node == INPUT else None
        if given is not None and given.padding != spec.padding:
            padded = f"rows are padded with {given.padding} for one model and {spec.padding} for {step.models[0].name}"
            raise QueryError(f"{given.name}: {padded}; give the query an input for each")
    return found


def _condition(step: Step, scope: Scope) -> Tensor | None:
    if step.when is None:
        return None
    with step.table.about("when"):
        return step.when.condition(scope.names())


def _outputs(root: Table, scope: Scope) -> dict[str, Tensor]:
    table = root.table("outputs")
    if not table.values:
        raise table.error('there are no outputs: write one under [outputs] as NAME = "node.output"')
    outputs = {}
    for name in table.values:
        if not NAME.fullmatch(name):
            raise table.error(f"{name[:200]!r} is no name of an output: use letters, digits, '.', '_' and '-'", name)
        parsed = read_expression(table, name)
        with table.about(name):
            outputs[name] = parsed.tensor(scope.names())
            needs(outputs[name])
    return outputs
