"""Performs `Map` and `Branch`: copies tensors from row to row as the wiring of a query says. It decides nothing.

All expressions are compiled to closures once. An action is performed for all of its requests together: rows that lie
side by side are one array, not copied. A tensor that is passed through is copied once. What several conditions that are
judged together have in common is computed once. Values may be any: the driver's threads have numpy ignore
floating-point errors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent, InvalidRequest
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.query import StepRows
from latebind.engine.operations import COMPUTED, LOGIC, Array, numbers
from latebind.engine.slots import ModelSlots, Rows
from latebind.engine.staging import are_contiguous
from latebind.queries.file.wiring import (
    EITHER,
    INPUT,
    Apply,
    DefinedQuery,
    Expression,
    Groups,
    Literal,
    Ref,
    Tensor,
    needs,
)


class Group(NamedTuple):
    """Requests for a query: an index that takes their `rows` of `size` out of the query's, and the models `chosen`."""

    rows: slice | list[int]
    size: int
    chosen: tuple[int, ...]


Read: TypeAlias = Callable[[Group], Array]  # the values `(B, *shape)` of an expression for so many requests
Write: TypeAlias = Callable[[Group], None]


class Mappings:
    """The compiled wirings of `queries` by name; `rows` says where their steps lie in the `slots` of their `models`."""

    def __init__(
        self,
        queries: Iterable[DefinedQuery],
        slots: Mapping[str, ModelSlots],
        rows: StepRows,
        models: Mapping[str, ModelSpec],
    ) -> None:
        self._queries = {defined.query.name: _Mapping.of(defined, slots, rows, models) for defined in queries}

    def map(self, action: Map) -> None:
        """Write the inputs of a step for the chosen model, or the outputs of the query; raises whatever goes wrong."""
        group = _group(action)
        for write in self._queries[action.query].writes[action.node]:
            write(group)

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        """Return for each request whether the conditions of the nodes hold; raises whatever goes wrong."""
        conditions, group = self._queries[action.query].conditions, _group(action)
        return tuple(zip(*[numbers(conditions[node](group), group.size) for node in action.nodes], strict=True))


def _group(action: Map | Branch) -> Group:
    slots = action.slots
    rows = slice(slots[0], slots[-1] + 1) if are_contiguous(slots) else list(slots)
    return Group(rows, len(slots), action.chosen)


@dataclass(frozen=True, slots=True)
class _Mapping:
    """One query: the writes of each node, and behind the last node those of its outputs; the conditions of nodes."""

    writes: tuple[tuple[Write, ...], ...]
    conditions: Mapping[int, Read]

    @classmethod
    def of(
        cls,
        defined: DefinedQuery,
        slots: Mapping[str, ModelSlots],
        rows: StepRows,
        models: Mapping[str, ModelSpec],
    ) -> "_Mapping":
        places = _TensorRows(defined, slots, rows)
        takes = [[models[model].inputs for model in node.models] for node in defined.query.nodes]
        wiring = defined.wiring
        steps = [
            tuple(
                _to_step(node, places.taken(node, place), one, places, [specs[place] for specs in takes[node]])
                for place, one in enumerate(inputs)
            )
            for node, inputs in enumerate(wiring.inputs)
        ]
        own = slots[defined.query.name].outputs
        outputs = tuple(_to_output(array, one, places) for array, one in zip(own, wiring.outputs, strict=True))
        judged = {node: one for node, one in enumerate(wiring.conditions) if one is not None}
        common = _common(judged.values())
        conditions = {node: _reader(one, places, common) for node, one in judged.items()}
        return cls((*steps, outputs), conditions)


class _TensorRows:
    """Where the tensors of one query are in shared memory."""

    def __init__(self, defined: DefinedQuery, slots: Mapping[str, ModelSlots], rows: StepRows) -> None:
        self._first = rows.first[defined.query.name]
        self._slots = rows.slots
        self._options = [[slots[model] for model in node.models] for node in defined.query.nodes]
        self.inputs = slots[defined.query.name].inputs

    def taken(self, node: int, place: int) -> tuple[Rows, ...]:
        """Return where each option of a node reads an input."""
        return self._of_query(node, [option.inputs[place] for option in self._options[node]])

    def given(self, node: int, place: int) -> tuple[Rows, ...]:
        """Return where each option of a node writes an output."""
        return self._of_query(node, [option.outputs[place] for option in self._options[node]])

    def _of_query(self, node: int, arrays: Sequence[Rows]) -> tuple[Rows, ...]:
        """Return the rows that belong to the slots of the query."""
        return tuple([rows[first : first + self._slots] for rows, first in zip(arrays, self._first[node], strict=True)])


def _to_step(node: int, to: Sequence[Rows], tensor: Tensor, places: _TensorRows, specs: Sequence[TensorSpec]) -> Write:
    """Write an input of a step, of which each model has a spec; raises for values that the chosen one does not take.

    The door checks what clients send, but not what models and expressions make of it.
    """
    read = _reader(tensor, places)

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


def _to_output(array: Rows, tensor: Tensor, places: _TensorRows) -> Write:
    """Write an output, or zeros if none of the steps that it is made of has run."""
    read, there = _reader(tensor, places), _presence(needs(tensor))

    def write(group: Group) -> None:
        array[group.rows] = read(group) if there(group) else 0

    return write


def _common(expressions: Iterable[Expression]) -> AbstractSet[Expression]:
    """Return the subexpressions that occur more than once in these."""
    counts = Counter(part for one in expressions for part in _computed(one))
    return {part for part, count in counts.items() if count > 1}


def _computed(expression: Expression) -> Iterator[Apply]:
    if isinstance(expression, Apply):
        yield expression
        for argument in expression.arguments:
            yield from _computed(argument)


def _reader(expression: Expression, places: _TensorRows, common: AbstractSet[Expression] = frozenset()) -> Read:
    match expression:
        case Ref(node, place):
            return _input(places.inputs[place]) if node == INPUT else _output(node, places.given(node, place))
        case Apply(operation, arguments):
            given = [one.value if isinstance(one, Literal) else _reader(one, places, common) for one in arguments]
            read = _applied(operation, arguments, given)
            return _once(read) if expression in common else read
        case _:
            raise AssertionError(f"{expression} is no tensor")


def _once(read: Read) -> Read:
    """Compute values once for each group, on whichever thread; only the last ones are kept."""
    last: tuple[Group | None, Any] = None, None

    def read_once(group: Group) -> Array:
        nonlocal last
        found = last
        if found[0] is not group:
            found = last = group, read(group)
        values: Array = found[1]
        return values

    return read_once


def _input(array: Rows) -> Read:
    return lambda group: array[group.rows]


def _output(node: int, places: Sequence[Rows]) -> Read:
    def read(group: Group) -> Array:
        option = group.chosen[node]
        if option < 0:
            raise _missing(node)
        return places[option][group.rows]

    return read


def _either(arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Read the first argument whose steps have run."""
    choices = [(_presence(needs(argument)), read) for argument, read in zip(arguments, reads, strict=True)]

    def read_first(group: Group) -> Array:
        for there, read in choices:
            if there(group):
                return read(group)
        raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

    return read_first


def _applied(operation: str, arguments: Sequence[Expression], given: Sequence[Any]) -> Read:
    """Return what computes an operation; `given` are literals, and `Read`s of tensors."""
    if operation == EITHER:
        return _either(arguments, given)
    if operation in ("and", "or"):
        return _joined(given, until=operation == "or")
    if operation in LOGIC:
        holds = LOGIC[operation]

        def judge(group: Group) -> Array:
            values = [numbers(one(group) if callable(one) else one, group.size) for one in given]
            return np.array([holds(*row) for row in zip(*values, strict=True)])

        return judge
    compute = COMPUTED[operation]
    first, *others = given
    if not any(map(callable, others)):  # most: a tensor, and literals of the file
        return lambda group: compute(first(group), *others)
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


def _presence(needed: Groups) -> Callable[[Group], bool]:
    """Return a function that tells whether at least one node of each set that is needed has run."""
    ordered = [sorted(nodes) for nodes in needed]

    def is_there(group: Group) -> bool:
        chosen = group.chosen
        for nodes in ordered:
            for node in nodes:
                if chosen[node] >= 0:
                    break
            else:
                return False
        return True

    return is_there


def _missing(node: int) -> IllegalEvent:
    return IllegalEvent(f"step {node} has no model, but something of it is wanted")
