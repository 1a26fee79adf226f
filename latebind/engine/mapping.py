"""Performs `Map` and `Branch`: tensors go from row to row as the wiring of a query says. It decides nothing.

All expressions are made into functions once. A tensor that is passed through is copied once, and what conditions that
are judged together have in common is computed once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from latebind.domain.actions import Branch, Map
from latebind.domain.errors import IllegalEvent
from latebind.domain.query import StepRows
from latebind.engine.operations import COMPUTED, LOGIC, SILENT
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

Look: TypeAlias = Map | Branch  # which says the query's slot, and the models chosen
Read: TypeAlias = Callable[[Look], Any]  # what an expression is there
Write: TypeAlias = Callable[[Look], None]
Place: TypeAlias = tuple[Rows, int]  # an array, and the row in it of the query in slot 0


class Mappings:
    """The wirings of `queries` over the slots of their models and of their own, by name, laid out as `rows` says."""

    def __init__(self, queries: Iterable[DefinedQuery], slots: Mapping[str, ModelSlots], rows: StepRows) -> None:
        self._queries = {defined.query.name: _Mapping.of(defined, slots, rows) for defined in queries}

    def map(self, action: Map) -> None:
        """Write the inputs of a step for the model chosen, or the outputs of the query; raises whatever goes wrong."""
        for write in self._queries[action.query].writes[action.node]:
            write(action)

    def branch(self, action: Branch) -> tuple[bool, ...]:
        """Return whether the conditions of the nodes hold; raises whatever goes wrong."""
        conditions = self._queries[action.query].conditions
        return tuple([bool(conditions[node](action)) for node in action.nodes])


@dataclass(frozen=True, slots=True)
class _Mapping:
    """One query: what to write for each node, and behind the last for its outputs; the conditions of nodes."""

    writes: tuple[tuple[Write, ...], ...]
    conditions: Mapping[int, Read]

    @classmethod
    def of(cls, defined: DefinedQuery, slots: Mapping[str, ModelSlots], rows: StepRows) -> "_Mapping":
        places = _Places(defined, slots, rows)
        wiring = defined.wiring
        steps = [
            tuple(_to_step(node, places.taken(node, place), one, places) for place, one in enumerate(inputs))
            for node, inputs in enumerate(wiring.inputs)
        ]
        own = slots[defined.query.name].outputs
        outputs = tuple(_to_output(array, one, places) for array, one in zip(own, wiring.outputs, strict=True))
        judged = {node: one for node, one in enumerate(wiring.conditions) if one is not None}
        common = _common(judged.values())
        conditions = {node: _quiet(one, places, common) for node, one in judged.items()}
        return cls((*steps, outputs), conditions)


class _Places:
    """Where the tensors of one query lie."""

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


def _to_step(node: int, to: Sequence[Place], tensor: Tensor, places: _Places) -> Write:
    """Write an input of a step. Most are an input of the query as it came, which is copied without a call more."""
    if isinstance(tensor, Ref) and tensor.node == INPUT:
        return _copied(node, to, places.inputs[tensor.place])
    read = _quiet(tensor, places)

    def write(look: Look) -> None:
        option = look.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = to[option]
        array[first + look.slot] = read(look)

    return write


def _copied(node: int, to: Sequence[Place], given: Rows) -> Write:
    def copy(look: Look) -> None:
        option = look.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = to[option]
        slot = look.slot
        array[first + slot] = given[slot]

    return copy


def _to_output(array: Rows, tensor: Tensor, places: _Places) -> Write:
    """Write an output, or zeros where nothing has run that it could be made of."""
    read, there = _quiet(tensor, places), _presence(needs(tensor))

    def write(look: Look) -> None:
        array[look.slot] = read(look) if there(look) else 0

    return write


def _common(expressions: Iterable[Expression]) -> AbstractSet[Expression]:
    """Return what is computed more than once in these."""
    counts = Counter(part for one in expressions for part in _computed(one))
    return {part for part, count in counts.items() if count > 1}


def _computed(expression: Expression) -> Iterator[Apply]:
    if isinstance(expression, Apply):
        yield expression
        for argument in expression.arguments:
            yield from _computed(argument)


def _quiet(expression: Expression, places: _Places, common: AbstractSet[Expression] = frozenset()) -> Read:
    """Return what an expression is, of whatever values; telling numpy not to speak takes longer than to copy a row."""
    read = _reader(expression, places, common)
    if _is_silent(expression):
        return read

    def read_quietly(look: Look) -> Any:
        with np.errstate(all="ignore"):
            return read(look)

    return read_quietly


def _is_silent(expression: Expression) -> bool:
    match expression:
        case Apply(operation, arguments):
            return operation in {EITHER, *SILENT} and all(map(_is_silent, arguments))
    return True


def _reader(expression: Expression, places: _Places, common: AbstractSet[Expression]) -> Read:
    match expression:
        case Literal(value):
            return lambda look: value
        case Ref(node, place):
            return _input(places.inputs[place]) if node == INPUT else _output(node, places.given(node, place))
        case Apply(operation, arguments):
            reads = [_reader(argument, places, common) for argument in arguments]
            read = _either(arguments, reads) if operation == EITHER else _applied(operation, arguments, reads)
            return _once(read) if expression in common else read


def _once(read: Read) -> Read:
    """Compute something once for each look, by whichever thread; the last one is kept."""
    last: tuple[Look | None, Any] = None, None

    def read_once(look: Look) -> Any:
        nonlocal last
        found = last
        if found[0] is not look:
            found = last = look, read(look)
        return found[1]

    return read_once


def _input(array: Rows) -> Read:
    return lambda look: array[look.slot]


def _output(node: int, places: Sequence[Place]) -> Read:
    def read(look: Look) -> Any:
        option = look.chosen[node]
        if option < 0:
            raise _missing(node)
        array, first = places[option]
        return array[first + look.slot]

    return read


def _either(arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Read the first of them that there is."""
    choices = [(_presence(needs(argument)), read) for argument, read in zip(arguments, reads, strict=True)]

    def read_first(look: Look) -> Any:
        for there, read in choices:
            if there(look):
                return read(look)
        raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

    return read_first


def _applied(operation: str, arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    if operation == "and":
        return lambda look: all(read(look) for read in reads)
    if operation == "or":
        return lambda look: any(read(look) for read in reads)
    compute = COMPUTED.get(operation) or LOGIC[operation]
    first, *others = reads
    given = [one.value for one in arguments[1:] if isinstance(one, Literal)]
    if len(given) == len(others):  # most: a tensor, and what stands in the file
        return lambda look: compute(first(look), *given)
    return lambda look: compute(*[read(look) for read in reads])


def _presence(groups: Groups) -> Callable[[Look], bool]:
    """Return what tells whether of each group a node has run."""
    ordered = [sorted(group) for group in groups]

    def is_there(look: Look) -> bool:
        chosen = look.chosen
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
