"""Performs `Map` and `Branch`, the actions of queries: copies tensors from row to row as the wiring of a query says.

It decides nothing. An action is performed for all of its requests together: adjacent rows are one array, not copied.
Where rows of a query differ in size, it is performed for each request by itself. A tensor that is passed through is
copied once. Any values are allowed: in the driver's threads numpy ignores floating-point errors.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent, InvalidRequest
from latebind.domain.events import Branched, MapFailed, Mapped
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import StepRows
from latebind.engine.operations import COMPUTED, LOGIC, OF_TORCH, Array, numbers
from latebind.engine.slots import ModelSlots, Rows, SizedSlots
from latebind.engine.staging import Staging, index_of
from latebind.engine.worker import Failures
from latebind.queries.file.wiring import EITHER, INPUT, Apply, DefinedQuery, Expression, Groups, Literal, Ref, needs

logger = logging.getLogger(__name__)

TensorAction: TypeAlias = Map | Branch
TensorEvent: TypeAlias = Branched | Mapped | MapFailed


class Group(NamedTuple):
    """Requests for a query: an index that selects their `size` `rows` from the query's, and the models `chosen`."""

    rows: slice | list[int]
    size: int
    chosen: tuple[int, ...]
    slot: int  # the first

    def have_run(self, needed: Groups) -> bool:
        """Return whether at least one node of each set that is needed has run."""
        return all(any(self.chosen[node] >= 0 for node in nodes) for nodes in needed)

    def option(self, node: int) -> int:
        """Return which of its models was chosen for a step; raises `IllegalEvent` if none."""
        if self.chosen[node] < 0:
            raise IllegalEvent(f"no model was chosen for step {node}, but something of it is wanted")
        return self.chosen[node]


Read: TypeAlias = Callable[
    [Group], Any
]  # the values `(B, *shape)` of an expression for a group of requests, or a literal


@dataclass(frozen=True, slots=True)
class Alike:
    """A tensor of all rows of a step or query, which have one size."""

    rows: Rows

    def read(self, group: Group) -> Array:
        """Return the rows of a group."""
        return self.rows[group.rows]

    def write(self, group: Group, values: Array | int) -> None:
        """Write the rows of a group, or one number everywhere."""
        self.rows[group.rows] = values


@dataclass(frozen=True, slots=True)
class Apart:
    """The tensor of this `number` of rows that differ in size; row `first` belongs to slot 0. Groups have one row."""

    sized: SizedSlots
    first: int
    number: int

    def read(self, group: Group) -> Array:
        """Return the row of a group, `(1, *shape)`."""
        return self.sized.row(self.first + group.slot, self.number)[np.newaxis]

    def write(self, group: Group, values: Array | int) -> None:
        """Write the row of a group; raises `InvalidRequest` for values of other sizes than it was to have."""
        row = self.sized.row(self.first + group.slot, self.number)
        if isinstance(values, np.ndarray) and values.shape[1:] != row.shape:
            raise InvalidRequest(f"a tensor of a step has shape {values.shape[1:]}, where {row.shape} was expected")
        row[...] = values


Column: TypeAlias = Alike | Apart


class Steps:
    """Performs `Map` and `Branch`, and notifies `staging` of steps whose inputs are complete. Thread-safe.

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

    def map(self, action: Map) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Write the inputs of a step for the chosen model, or the outputs of the query; raises any error.

        Returns `inputs` and `sizes` of `Mapped`.
        """
        wired, node = self._queries[action.query], action.node
        for group in wired.groups(action):
            if node == len(wired.nodes):
                wired.write_outputs(group)
            else:
                wired.write_inputs(node, group)
        if node == len(wired.nodes):
            return (), ()
        option = action.chosen[node]
        if self._staging.copies:  # its model's device is to get the inputs
            places = [self._rows.row(action.query, node, option, slot) for slot in action.slots]
            self._staging.copy_in(wired.nodes[node].models[option], places)
        return wired.lengths_and_sizes(node, option, action.slots)

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Return for each request whether the conditions of the nodes hold; raises any error."""
        wired, found = self._queries[action.query], list[tuple[bool, ...]]()
        for group in wired.groups(action):
            found += zip(*[numbers(wired.conditions[node](group), group.size) for node in action.nodes], strict=True)
        return tuple(found)

    def perform_all(self, actions: Sequence[TensorAction], *, more: bool = False) -> list[TensorEvent]:
        """Perform actions one after another; return the events, which are to be reported together.

        Each is performed for all of its requests together. If that raises, it is performed for each of them alone, and
        fails those for which it raises again. For `more` see `Branched`.
        """
        found, last = list[TensorEvent](), len(actions) - 1
        for place, action in enumerate(actions):
            found += self._perform(action, more=more or place < last)
        return found

    def _perform(self, action: TensorAction, *, more: bool) -> list[TensorEvent]:
        try:
            if isinstance(action, Branch):
                return [Branched(action.requests, action.nodes, self.branch(action), more)]
            inputs, sizes = self.map(action)
            return [Mapped(action.requests, action.node, more, inputs, sizes)]
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


def of_torch(defined: DefinedQuery) -> list[str]:
    """Return the operations of a query that torch computes."""
    wiring, found = defined.wiring, list[str]()
    every = [one for options in wiring.inputs for inputs in options for one in inputs]
    left: list[Expression] = [*every, *wiring.outputs, *(one for one in wiring.conditions if one is not None)]
    while left:
        one = left.pop()
        if isinstance(one, Apply):
            left += one.arguments
            found += [one.operation] if one.operation in OF_TORCH else []
    return found


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
        self._own = _tensors(slots[query.name], query.spec, 0, rows.slots)
        # By node and model: the inputs with their specs, and the outputs, where the rows lie that belong to the query.
        self._inputs = list[list[list[tuple[Column, TensorSpec]]]]()
        self._outputs = list[list[list[Column]]]()
        self._sized = list[list[tuple[SizedSlots, int] | None]]()
        for node, firsts in zip(query.nodes, rows.first[query.name], strict=True):
            given = list(zip(node.models, firsts, strict=True))
            tensors = [_tensors(slots[name], models[name], first, rows.slots) for name, first in given]
            specs = [models[name].inputs for name in node.models]
            self._inputs.append(
                [list(zip(inputs, spec, strict=True)) for (inputs, _), spec in zip(tensors, specs, strict=True)]
            )
            self._outputs.append([outputs for _, outputs in tensors])
            self._sized.append([None if (s := slots[name].sized) is None else (s, first) for name, first in given])
        apart = any(step is not None for steps in self._sized for step in steps)
        self._apart = apart or slots[query.name].sized is not None
        self._given = [[tuple(map(self._reader, inputs)) for inputs in options] for options in wiring.inputs]
        self._answers = [(needs(one), self._reader(one)) for one in wiring.outputs]
        self.conditions = {node: self._reader(one) for node, one in enumerate(wiring.conditions) if one is not None}

    def groups(self, action: TensorAction) -> list[Group]:
        """Return the requests of an action as they are read and written together."""
        slots, chosen = action.slots, action.chosen
        if self._apart:
            return [Group(slice(slot, slot + 1), 1, chosen, slot) for slot in slots]
        return [Group(index_of(slots), len(slots), chosen, slots[0])]

    def lengths_and_sizes(
        self, node: int, option: int, slots: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the length of each row of a step, and a number for its sizes; nothing where rows have one size."""
        step = self._sized[node][option]
        if step is None:
            return (), ()
        sized, first = step
        sizes = sized.sizes([first + slot for slot in slots])
        return tuple(map(sized.length, sizes)), tuple(map(sized.number, sizes))

    def write_inputs(self, node: int, group: Group) -> None:
        """Write the inputs of a step; raises for values that its model does not take.

        The frontend checks what clients send, but not what models and expressions make of it.
        """
        option = group.option(node)
        for (to, spec), read in zip(self._inputs[node][option], self._given[node][option], strict=True):
            values = read(group)
            if spec.is_limited and values.size and not spec.allows(values.min().item(), values.max().item()):
                raise InvalidRequest(
                    f"input {spec.name!r} of a step has values that its model does not take: {spec.range()}"
                )
            to.write(group, values)

    def write_outputs(self, group: Group) -> None:
        """Write each output, or zeros if none of the steps that it is made of has run."""
        for column, (needed, read) in zip(self._own[1], self._answers, strict=True):
            column.write(group, read(group) if group.have_run(needed) else 0)

    def _reader(self, expression: Expression) -> Read:
        """Return a function that reads an expression. Walking through it again for each group takes twice as long."""
        match expression:
            case Literal(value):
                return lambda group: value
            case Ref(node, place) if node == INPUT:
                return self._own[0][place].read
            case Ref(node, place):
                reads = [outputs[place].read for outputs in self._outputs[node]]
                return lambda group: reads[group.option(node)](group)
            case Apply(operation, arguments):
                return _applied(operation, arguments, [self._reader(one) for one in arguments])


def _tensors(slots: ModelSlots, spec: ModelSpec, first: int, rows: int) -> tuple[list[Column], list[Column]]:
    """Return inputs and outputs of the rows from the `first` on."""
    sized, inputs = slots.sized, len(spec.inputs)
    if sized is None:
        arrays = [Alike(array[first : first + rows]) for array in (*slots.inputs, *slots.outputs)]
        return list[Column](arrays[:inputs]), list[Column](arrays[inputs:])
    apart = [Apart(sized, first, number) for number in range(inputs + len(spec.outputs))]
    return list[Column](apart[:inputs]), list[Column](apart[inputs:])


def _applied(operation: str, arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Return a function that computes an operation, whose arguments `reads` read."""
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
    """Read one condition after another as long as some row is not decided: the first value equal to `until` decides.

    If a condition raises that would not have been read for a row alone, `Steps` tries each row alone.
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
