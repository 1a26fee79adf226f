"""Performs `Map` and `Branch`, the actions of queries: copies tensors from row to row as the wiring of a query says.

It decides nothing. An action is performed for all of its requests together: rows that lie side by side are one array,
not copied. A tensor that is passed through is copied once. Values may be any: the driver's threads have numpy ignore
floating-point errors.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent, InvalidRequest
from latebind.domain.events import Branched, MapFailed, Mapped
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import StepRows
from latebind.engine.operations import COMPUTED, LOGIC, Array, numbers
from latebind.engine.slots import ModelSlots, Rows
from latebind.engine.staging import Staging, index_of
from latebind.engine.worker import Failures
from latebind.queries.file.wiring import EITHER, INPUT, Apply, DefinedQuery, Expression, Groups, Literal, Ref, needs

logger = logging.getLogger(__name__)

TensorAction: TypeAlias = Map | Branch
Looked: TypeAlias = Branched | Mapped | MapFailed


class Group(NamedTuple):
    """Requests for a query: an index that takes their `rows` of `size` out of the query's, and the models `chosen`."""

    rows: slice | list[int]
    size: int
    chosen: tuple[int, ...]

    def have_run(self, needed: Groups) -> bool:
        """Return whether at least one node of each set that is needed has run."""
        return all(any(self.chosen[node] >= 0 for node in nodes) for nodes in needed)

    def option(self, node: int) -> int:
        """Return which of its models a step has been given; raises `IllegalEvent` if none."""
        if self.chosen[node] < 0:
            raise IllegalEvent(f"step {node} has no model, but something of it is wanted")
        return self.chosen[node]


Read: TypeAlias = Callable[[Group], Any]  # the values `(B, *shape)` of an expression for so many requests, or a literal


class Steps:
    """Performs `Map` and `Branch`, and tells `staging` of steps whose inputs are complete. From any thread.

    `rows` says where the steps of `queries` lie in the `slots` of their `models`.
    """

    def __init__(
        self,
        queries: Iterable[DefinedQuery],
        slots: Mapping[str, ModelSlots],
        rows: StepRows,
        models: Mapping[str, ModelSpec],
        staging: Staging,
    ) -> None:
        self._rows = rows
        self._staging = staging
        self._queries = {defined.query.name: _Wired(defined, slots, rows, models) for defined in queries}
        self._failures = Failures(logger)

    def map(self, action: Map) -> None:
        """Write the inputs of a step for the chosen model, or the outputs of the query; raises whatever goes wrong."""
        wired, group = self._queries[action.query], _group(action)
        if action.node == len(wired.nodes):
            wired.write_outputs(group)
            return
        wired.write_inputs(action.node, group)
        if self._staging.copies:  # its model's device is to get the inputs
            option = action.chosen[action.node]
            places = [self._rows.row(action.query, action.node, option, slot) for slot in action.slots]
            self._staging.copy_in(wired.nodes[action.node].models[option], places)

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Return for each request whether the conditions of the nodes hold; raises whatever goes wrong."""
        wired, group = self._queries[action.query], _group(action)
        return tuple(zip(*[numbers(wired.conditions[node](group), group.size) for node in action.nodes], strict=True))

    def perform_all(self, actions: Sequence[TensorAction], *, more: bool = False) -> list[Looked]:
        """Perform actions one after another; return the events, which are to be reported together.

        Each is performed for all of its requests together. If that raises, it is performed for each of them alone, and
        fails those for which it raises again. For `more` see `Branched`.
        """
        found, last = list[Looked](), len(actions) - 1
        for place, action in enumerate(actions):
            found += self._perform(action, more=more or place < last)
        return found

    def _perform(self, action: TensorAction, *, more: bool) -> list[Looked]:
        try:
            if isinstance(action, Branch):
                return [Branched(action.requests, action.nodes, self.branch(action), more)]
            self.map(action)
            return [Mapped(action.requests, action.node, more)]
        except Exception as raised:
            error = raised
        rows = list(zip(action.requests, action.slots, strict=True))
        if len(rows) > 1:
            alone = [replace(action, requests=(request,), slots=(slot,)) for request, slot in rows]
            return self.perform_all(alone, more=more)
        nodes = self._queries[action.query].nodes
        doing, failed = ("judging", action.nodes) if isinstance(action, Branch) else ("mapping", (action.node,))
        names = ", ".join([f"step {nodes[node].name!r}" if node < len(nodes) else "the outputs" for node in failed])
        self._failures.log(f"{doing} {names} of {action.query}", error, f" for request {action.requests[0]}")
        return [MapFailed(action.requests, failed, more)]


def _group(action: TensorAction) -> Group:
    return Group(index_of(action.slots), len(action.slots), action.chosen)


class _Wired:
    """One query over its slots: reads what expressions refer to, and writes inputs of steps and outputs."""

    def __init__(
        self,
        defined: DefinedQuery,
        slots: Mapping[str, ModelSlots],
        rows: StepRows,
        models: Mapping[str, ModelSpec],
    ) -> None:
        query, wiring = defined.query, defined.wiring
        self.nodes = query.nodes
        self._own = slots[query.name]
        # By node and model: the inputs with their specs, and the outputs, where the rows lie that belong to the query.
        self._inputs = list[list[list[tuple[Rows, TensorSpec]]]]()
        self._outputs = list[list[list[Rows]]]()
        for node, firsts in zip(query.nodes, rows.first[query.name], strict=True):
            parts = [slice(first, first + rows.slots) for first in firsts]
            given = list(zip(node.models, parts, strict=True))
            self._inputs.append(
                [
                    [(array[part], spec) for array, spec in zip(slots[name].inputs, models[name].inputs, strict=True)]
                    for name, part in given
                ]
            )
            self._outputs.append([[array[part] for array in slots[name].outputs] for name, part in given])
        self._given = [tuple(map(self._reader, inputs)) for inputs in wiring.inputs]
        self._answers = [(needs(one), self._reader(one)) for one in wiring.outputs]
        self.conditions = {node: self._reader(one) for node, one in enumerate(wiring.conditions) if one is not None}

    def write_inputs(self, node: int, group: Group) -> None:
        """Write the inputs of a step; raises for values that its model does not take.

        The frontend checks what clients send, but not what models and expressions make of it.
        """
        inputs = self._inputs[node][group.option(node)]
        for (to, spec), read in zip(inputs, self._given[node], strict=True):
            values = read(group)
            if spec.is_limited and values.size and not spec.allows(values.min().item(), values.max().item()):
                raise InvalidRequest(
                    f"input {spec.name!r} of a step has values that its model does not take: {spec.range()}"
                )
            to[group.rows] = values

    def write_outputs(self, group: Group) -> None:
        """Write each output, or zeros if none of the steps that it is made of has run."""
        for array, (needed, read) in zip(self._own.outputs, self._answers, strict=True):
            array[group.rows] = read(group) if group.have_run(needed) else 0

    def _reader(self, expression: Expression) -> Read:
        """Return what reads an expression. To walk through it anew for each group takes twice as long."""
        match expression:
            case Literal(value):
                return lambda group: value
            case Ref(node, place) if node == INPUT:
                array = self._own.inputs[place]
                return lambda group: array[group.rows]
            case Ref(node, place):
                places = [outputs[place] for outputs in self._outputs[node]]
                return lambda group: places[group.option(node)][group.rows]
            case Apply(operation, arguments):
                return _applied(operation, arguments, [self._reader(one) for one in arguments])


def _applied(operation: str, arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Return what computes an operation of what `reads` read its arguments."""
    if operation == EITHER:
        return _first(list(zip(map(needs, arguments), reads, strict=True)))
    if operation in ("and", "or"):
        return _joined(reads, until=operation == "or")
    if operation in LOGIC:
        return _judged(LOGIC[operation], reads)
    compute = COMPUTED[operation]
    return lambda group: compute(*[read(group) for read in reads])


def _first(choices: Sequence[tuple[Groups, Read]]) -> Read:
    def read_first(group: Group) -> Array:
        for needed, read in choices:
            if group.have_run(needed):
                return read(group)  # type: ignore[no-any-return]
        raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

    return read_first


def _judged(holds: Callable[..., bool], reads: Sequence[Read]) -> Read:
    def judge(group: Group) -> Array:
        values = [numbers(read(group), group.size) for read in reads]
        return np.array([holds(*row) for row in zip(*values, strict=True)])

    return judge


def _joined(reads: Sequence[Read], *, until: bool) -> Read:
    """Read one condition after another as long as some row is not decided: the first that is `until` is it.

    Where a row's later condition raises that would not have been read for this row alone, each row is tried alone.
    """

    def read_until(group: Group) -> Array:
        found: Array = reads[0](group).reshape(group.size)
        for read in reads[1:]:
            if (found == until).all():
                break
            more = read(group).reshape(group.size)
            found = found | more if until else found & more
        return found

    return read_until
