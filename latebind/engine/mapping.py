"""Performs `Map` and `Branch`, the actions of queries: copies tensors from row to row as the wiring of a query says.

It decides nothing. All expressions are compiled to closures once. An action is performed for all of its requests
together: rows that lie side by side are one array, not copied. A tensor that is passed through is copied once. Values
may be any: the driver's threads have numpy ignore floating-point errors.
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
from latebind.engine.shared import ModelSlots, Rows
from latebind.engine.staging import Staging, index_of
from latebind.engine.worker import Failures
from latebind.queries.file.wiring import (
    EITHER,
    INPUT,
    Apply,
    DefinedQuery,
    Expression,
    Groups,
    Literal,
    Ref,
    needs,
)

logger = logging.getLogger(__name__)

TensorAction: TypeAlias = Map | Branch
Looked: TypeAlias = Branched | Mapped | MapFailed


class Group(NamedTuple):
    """Requests for a query: an index that takes their `rows` of `size` out of the query's, and the models `chosen`."""

    rows: slice | list[int]
    size: int
    chosen: tuple[int, ...]


Read: TypeAlias = Callable[[Group], Array]  # the values `(B, *shape)` of an expression for so many requests
Write: TypeAlias = Callable[[Group], None]


class Steps:
    """Performs `Map` and `Branch`, and tells `staging` of steps whose inputs are complete. From any thread.

    The wirings of `queries` are compiled; `rows` says where their steps lie in the `slots` of their `models`.
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
        for write in wired.writes[action.node]:
            write(group)
        if self._staging.copies and action.node < len(wired.nodes):  # its model's device is to get the inputs
            option = action.chosen[action.node]
            places = [self._rows.row(action.query, action.node, option, slot) for slot in action.slots]
            self._staging.copy_in(wired.nodes[action.node].models[option], places)

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Return for each request whether the conditions of the nodes hold; raises whatever goes wrong."""
        conditions, group = self._queries[action.query].conditions, _group(action)
        return tuple(zip(*[numbers(conditions[node](group), group.size) for node in action.nodes], strict=True))

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
    """One query: the `writes` of each node, and behind the last node those of its outputs; the `conditions` of nodes.

    What reads a tensor of a node is given where each of the node's models has its rows that belong to the query.
    """

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
        self._places = [
            [(slots[model], slice(first, first + rows.slots)) for model, first in zip(node.models, firsts, strict=True)]
            for node, firsts in zip(query.nodes, rows.first[query.name], strict=True)
        ]
        self.conditions = {node: self._reader(one) for node, one in enumerate(wiring.conditions) if one is not None}
        steps = [
            tuple(
                _to_step(
                    node,
                    [option.inputs[place][part] for option, part in self._places[node]],
                    self._reader(tensor),
                    [models[model].inputs[place] for model in query.nodes[node].models],
                )
                for place, tensor in enumerate(inputs)
            )
            for node, inputs in enumerate(wiring.inputs)
        ]
        outputs = zip(self._own.outputs, wiring.outputs, strict=True)
        self.writes = (*steps, tuple(_to_output(array, self._reader(one), needs(one)) for array, one in outputs))

    def _reader(self, expression: Expression) -> Read:
        """Return what reads an expression."""
        match expression:
            case Ref(node, place) if node == INPUT:
                array = self._own.inputs[place]
                return lambda group: array[group.rows]
            case Ref(node, place):
                return _of_step(node, [option.outputs[place][part] for option, part in self._places[node]])
            case Apply(operation, arguments):
                given = [one.value if isinstance(one, Literal) else self._reader(one) for one in arguments]
                return _applied(operation, arguments, given)
            case _:
                raise AssertionError(f"{expression} is no tensor")


def _to_step(node: int, to: Sequence[Rows], read: Read, specs: Sequence[TensorSpec]) -> Write:
    """Write an input of a step, of which each model has a spec; raises for values that the chosen one does not take.

    The frontend checks what clients send, but not what models and expressions make of it.
    """

    def write(group: Group) -> None:
        option = group.chosen[node]
        if option < 0:
            raise _missing(node)
        values, spec = read(group), specs[option]
        if spec.is_limited and values.size and not spec.allows(values.min().item(), values.max().item()):
            raise InvalidRequest(
                f"input {spec.name!r} of a step has values that its model does not take: {spec.range()}"
            )
        to[option][group.rows] = values

    return write


def _to_output(array: Rows, read: Read, needed: Groups) -> Write:
    """Write an output, or zeros if none of the steps that it is made of has run."""

    def write(group: Group) -> None:
        array[group.rows] = read(group) if _have_run(group, needed) else 0

    return write


def _of_step(node: int, places: Sequence[Rows]) -> Read:
    def read(group: Group) -> Array:
        option = group.chosen[node]
        if option < 0:
            raise _missing(node)
        return places[option][group.rows]

    return read


def _applied(operation: str, arguments: Sequence[Expression], given: Sequence[Any]) -> Read:
    """Return what computes an operation; `given` are literals, and `Read`s of tensors."""
    if operation == EITHER:
        choices = [(needs(argument), read) for argument, read in zip(arguments, given, strict=True)]

        def read_first(group: Group) -> Array:
            """Read the first argument whose steps have run."""
            for needed, read in choices:
                if _have_run(group, needed):
                    return read(group)  # type: ignore[no-any-return]
            raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

        return read_first
    if operation in ("and", "or"):
        return _joined(given, until=operation == "or")
    if operation in LOGIC:
        holds = LOGIC[operation]

        def judge(group: Group) -> Array:
            values = [numbers(one(group) if callable(one) else one, group.size) for one in given]
            return np.array([holds(*row) for row in zip(*values, strict=True)])

        return judge
    compute = COMPUTED[operation]
    return lambda group: compute(*[one(group) if callable(one) else one for one in given])


def _joined(reads: Sequence[Read], *, until: bool) -> Read:
    """Read one condition after another, each only as long as some row is not decided: the first that is `until` is it.

    Where a row's later condition raises that would not have been read for this row alone, each row is tried alone.
    """

    def read_until(group: Group) -> Array:
        found = reads[0](group).reshape(group.size)
        for read in reads[1:]:
            if (found == until).all():
                break
            more = read(group).reshape(group.size)
            found = found | more if until else found & more
        return found

    return read_until


def _have_run(group: Group, needed: Groups) -> bool:
    """Return whether at least one node of each set that is needed has run."""
    return all(any(group.chosen[node] >= 0 for node in nodes) for nodes in needed)


def _missing(node: int) -> IllegalEvent:
    return IllegalEvent(f"step {node} has no model, but something of it is wanted")
