"""A network as data: inputs, operator calls in order, outputs. Plain values only; `graph_file` writes and reads it.

A `Graph` is a whole model or one stage of it; both have the same form, so cutting is slicing (`cut`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from latebind.domain.model import TensorSpec


@dataclass(frozen=True, slots=True)
class Value:
    """A reference to an input of the graph or to the result of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Weight:
    """A reference to a tensor in the weights file."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A torch constant by its name; `kind` is "dtype", "device", "layout" or "memory_format"."""

    kind: str
    name: str


Argument = Value | Weight | Constant | str | float | int | bool | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a node yields. A dimension of None is the batch dimension; -1 is another size that depends on the batch."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def row(self) -> tuple[int, ...] | None:
        """The shape of one row where dimension 0 is the batch and all others are fixed, else None."""
        fixed = tuple(size for size in self.shape[1:] if size is not None and size >= 0)
        whole = self.shape[:1] == (None,) and len(fixed) == len(self.shape) - 1
        return fixed if whole else None


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator. `type` is None where the result is not one tensor (a tuple, the batch size)."""

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    type: TensorType | None = None

    def values(self) -> Iterator[str]:
        """Yield the names of the values that this node reads, in order, possibly more than once."""
        yield from (ref.name for ref in self._references() if isinstance(ref, Value))

    def weights(self) -> Iterator[str]:
        """Yield the names of the weights that this node reads."""
        yield from (ref.name for ref in self._references() if isinstance(ref, Weight))

    def _references(self) -> Iterator[Argument]:
        yield from _flat(self.args)
        for _, argument in self.kwargs:
            yield from _flat((argument,))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which every value is made before it is read.

    `inputs` are tensors whose dimension 0 is the batch (`shape` leaves it out). `outputs` pairs the name that a
    client sees with the value's name.
    """

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...]

    def weights(self) -> tuple[str, ...]:
        """Return the names of all weights that the graph reads, each once, in order of first use."""
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.weights()))

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of each output; the batch dimension is left out."""
        types = {spec.name: TensorType(spec.dtype, (None, *spec.shape)) for spec in self.inputs}
        types |= {node.name: node.type for node in self.nodes if node.type is not None}
        return tuple(TensorSpec(name, types[value].dtype, types[value].row or ()) for name, value in self.outputs)


def replace(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Return `argument` with `change` applied to everything in it that is not a tuple."""
    if isinstance(argument, tuple):
        return tuple(replace(part, change) for part in argument)
    return change(argument)


def _flat(arguments: tuple[Argument, ...]) -> Iterator[Argument]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument
