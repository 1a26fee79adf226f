"""Performs `Map` and `Branch`: tensors go from row to row as the wiring of a query says. It decides nothing.

All expressions are made into functions once. A tensor that is passed through is copied once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

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

Chosen: TypeAlias = Sequence[int]
Read: TypeAlias = Callable[[int, Chosen], Any]  # what an expression is for a query's slot and the models chosen
Write: TypeAlias = Callable[[int, Chosen], None]
Place: TypeAlias = tuple[Rows, int]  # an array, and the row in it of the query in slot 0


class Mappings:
    """The wirings of `queries` over the slots of their models and of their own, by name, laid out as `rows` says."""

    def __init__(self, queries: Iterable[DefinedQuery], slots: Mapping[str, ModelSlots], rows: StepRows) -> None:
        self._queries = {defined.query.name: _Mapping.of(defined, slots, rows) for defined in queries}

    def map(self, action: Map) -> None:
        """Write the inputs of a step for the model chosen, or the outputs of the query; raises whatever goes wrong."""
        with np.errstate(all="ignore"):
            for write in self._queries[action.query].writes[action.node]:
                write(action.slot, action.chosen)

    def branch(self, action: Branch) -> tuple[bool, ...]:
        """Return whether the conditions of the nodes hold; raises whatever goes wrong."""
        conditions = self._queries[action.query].conditions
        with np.errstate(all="ignore"):
            return tuple([bool(conditions[node](action.slot, action.chosen)) for node in action.nodes])


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
            tuple(_to_step(node, places.taken(node, place), _reader(one, places)) for place, one in enumerate(inputs))
            for node, inputs in enumerate(wiring.inputs)
        ]
        own = slots[defined.query.name].outputs
        outputs = tuple(_to_output(array, one, places) for array, one in zip(own, wiring.outputs, strict=True))
        conditions = {node: _reader(one, places) for node, one in enumerate(wiring.conditions) if one is not None}
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


def _to_step(node: int, places: Sequence[Place], read: Read) -> Write:
    def write(slot: int, chosen: Chosen) -> None:
        array, first = places[_ran(node, chosen)]
        array[first + slot] = read(slot, chosen)

    return write


def _to_output(array: Rows, tensor: Tensor, places: _Places) -> Write:
    """Write an output, or zeros where nothing has run that it could be made of."""
    read, there = _reader(tensor, places), _presence(needs(tensor))

    def write(slot: int, chosen: Chosen) -> None:
        array[slot] = read(slot, chosen) if there(chosen) else 0

    return write


def _reader(expression: Expression, places: _Places) -> Read:
    match expression:
        case Literal(value):
            return lambda slot, chosen: value
        case Ref(node, place):
            return _input(places.inputs[place]) if node == INPUT else _output(node, places.given(node, place))
        case Apply(operation, arguments):
            reads = [_reader(argument, places) for argument in arguments]
            return _either(arguments, reads) if operation == EITHER else _applied(operation, reads)


def _input(array: Rows) -> Read:
    return lambda slot, chosen: array[slot]


def _output(node: int, places: Sequence[Place]) -> Read:
    def read(slot: int, chosen: Chosen) -> Any:
        array, first = places[_ran(node, chosen)]
        return array[first + slot]

    return read


def _either(arguments: Sequence[Expression], reads: Sequence[Read]) -> Read:
    """Read the first of them that there is."""
    choices = [(_presence(needs(argument)), read) for argument, read in zip(arguments, reads, strict=True)]

    def read_first(slot: int, chosen: Chosen) -> Any:
        for there, read in choices:
            if there(chosen):
                return read(slot, chosen)
        raise IllegalEvent("none of the steps has run that a tensor is to be taken from")

    return read_first


def _applied(operation: str, reads: Sequence[Read]) -> Read:
    if operation == "and":
        return lambda slot, chosen: all(read(slot, chosen) for read in reads)
    if operation == "or":
        return lambda slot, chosen: any(read(slot, chosen) for read in reads)
    compute = COMPUTED.get(operation) or LOGIC[operation]
    return lambda slot, chosen: compute(*[read(slot, chosen) for read in reads])


def _presence(groups: Groups) -> Callable[[Chosen], bool]:
    """Return what tells whether of each group a node has run."""
    ordered = [sorted(group) for group in groups]
    return lambda chosen: all(any(chosen[node] >= 0 for node in group) for group in ordered)


def _ran(node: int, chosen: Chosen) -> int:
    """Return the option that a node has; raises `IllegalEvent` where it has none."""
    option = chosen[node]
    if option < 0:
        raise IllegalEvent(f"step {node} has no model, but something of it is wanted")
    return option
