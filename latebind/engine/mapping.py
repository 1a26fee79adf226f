"""Performs `Map` and `Branch`: copies tensors from row to row as the wiring of a query says. It decides nothing.

All expressions are compiled to closures once. A tensor that is passed through is copied once. What several conditions
that are judged together have in common is computed once. Values may be any: the driver's threads have numpy ignore
floating-point errors.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent
from latebind.domain.query import StepRows
from latebind.engine.operations import COMPUTED, LOGIC
from latebind.engine.slots import ModelSlots, Rows
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

TensorAction: TypeAlias = Map | Branch  # has the query's slot and the models chosen
Read: TypeAlias = Callable[[TensorAction], Any]  # the value of an expression for an action
Write: TypeAlias = Callable[[TensorAction], None]
Place: TypeAlias = tuple[Rows, int]  # an array, and its row that belongs to the query in slot 0


class Mappings:
    """The compiled wirings of `queries` by name; `rows` says where their steps lie in the `slots` of their models."""

    def __init__(self, queries: Iterable[DefinedQuery], slots: Mapping[str, ModelSlots], rows: StepRows) -> None:
        self._queries = {defined.query.name: _Mapping.of(defined, slots, rows) for defined in queries}

    def map(self, action: Map) -> None:
        """Write the inputs of a step for the chosen model, or the outputs of the query; raises whatever goes wrong."""
        for write in self._queries[action.query].writes[action.node]:
            write(action)

    def branch(self, action: Branch) -> tuple[bool, ...]:
        """Return whether the conditions of the nodes hold; raises whatever goes wrong."""
        conditions = self._queries[action.query].conditions
        return tuple([bool(conditions[node](action)) for node in action.nodes])


@dataclass(frozen=True, slots=True)
class _Mapping:
    """One query: the writes of each node, and behind the last node those of its outputs; the conditions of nodes."""

    writes: tuple[tuple[Write, ...], ...]
    conditions: Mapping[int, Read]

    @classmethod
    def of(cls, defined: DefinedQuery, slots: Mapping[str, ModelSlots], rows: StepRows) -> "_Mapping":
        places = _TensorRows(defined, slots, rows)
        wiring = defined.wiring
        steps = [
            tuple(_to_step(node, places.taken(node, place), one, places) for place, one in enumerate(inputs))
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
        self._options = [[slots[model] for model in node.models] for node in defined.query.nodes]
        self.inputs = slots[defined.query.name].inputs

    def taken(self, node: int, place: int) -> tuple[Place, ...]:
        """Return where each option of a node reads an input."""
        return self._with_first(node, [option.inputs[place] for option in self._options[node]])

    def given(self, node: int, place: int) -> tuple[Place, ...]:
        """Return where each option of a node writes an output."""
        return self._with_first(node, [option.outputs[place] for option in self._options[node]])

    def _with_first(self, node: int, arrays: Sequence[Rows]) -> tuple[Place, ...]:
        return tuple(zip(arrays, self._first[node], strict=True))


def _to_step(node: int, to: Sequence[Place], tensor: Tensor, places: _TensorRows) -> Write:
    """Write an input of a step. Most are an unchanged input of the query, which is copied without a further call."""
    if isinstance(tensor, Ref) and tensor.node == INPUT:
        return _copied(node, to, places.inputs[tensor.place])
    read = _reader(tensor, places)

    def write(action: TensorAction) -> None:
        option = action.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = to[option]
        array[first + action.slot] = read(action)

    return write


def _copied(node: int, to: Sequence[Place], given: Rows) -> Write:
    def copy(action: TensorAction) -> None:
        option = action.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = to[option]
        slot = action.slot
        array[first + slot] = given[slot]

    return copy


def _to_output(array: Rows, tensor: Tensor, places: _TensorRows) -> Write:
    """Write an output, or zeros if none of the steps that it is made of has run."""
    read, there = _reader(tensor, places), _presence(needs(tensor))

    def write(action: TensorAction) -> None:
        array[action.slot] = read(action) if there(action) else 0

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
        case Literal(value):
            return lambda action: value
        case Ref(node, place):
            return _input(places.inputs[place]) if node == INPUT else _output(node, places.given(node, place))
        case Apply(operation, arguments):
            reads = [_reader(argument, places, common) for argument in arguments]
            read = _either(arguments, reads) if operation == EITHER else _applied(operation, arguments, reads)
            return _once(read) if expression in common else read


def _once(read: Read) -> Read:
    """Compute a value once for each action, on whichever thread; only the last one is kept."""
    last: tuple[TensorAction | None, Any] = None, None

    def read_once(action: TensorAction) -> Any:
        nonlocal last
        found = last
        if found[0] is not action:
            found = last = action, read(action)
        return found[1]

    return read_once


def _input(array: Rows) -> Read:
    return lambda action: array[action.slot]


def _output(node: int, places: Sequence[Place]) -> Read:
    def read(action: TensorAction) -> Any:
        option = action.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = places[option]
        return array[first + action.slot]

    return read


def _either(arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Read the first argument whose steps have run."""
    choices = [(_presence(needs(argument)), read) for argument, read in zip(arguments, reads, strict=True)]

    def read_first(action: TensorAction) -> Any:
        for there, read in choices:
            if there(action):
                return read(action)
        raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

    return read_first


def _applied(operation: str, arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    if operation == "and":
        return lambda action: all(read(action) for read in reads)
    if operation == "or":
        return lambda action: any(read(action) for read in reads)
    compute = COMPUTED.get(operation) or LOGIC[operation]
    first, *others = reads
    given = [one.value for one in arguments[1:] if isinstance(one, Literal)]
    if len(given) == len(others):  # most: a tensor, and literals of the file
        return lambda action: compute(first(action), *given)
    return lambda action: compute(*[read(action) for read in reads])


def _presence(groups: Groups) -> Callable[[TensorAction], bool]:
    """Return a function that tells whether at least one node of each group has run."""
    ordered = [sorted(group) for group in groups]

    def is_there(action: TensorAction) -> bool:
        chosen = action.chosen
        for group in ordered:
            for node in group:
                if chosen[node] >= 0:
                    break
            else:
                return False
        return True

    return is_there


def _missing(node: int) -> IllegalEvent:
    return IllegalEvent(f"step {node} has no model, but something of it is wanted")
