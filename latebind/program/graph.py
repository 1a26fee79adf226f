"""A network as data: inputs, operator calls in order, outputs. Plain values only; `graph_file` stores them as JSON.

A `Graph` is a whole model or one stage of it. Both have the same form, so cutting is slicing (`cut`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

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
    """The type of a node's result. A dimension None is the batch; -1 is another size that depends on the batch."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def row(self) -> tuple[int, ...] | None:
        """The shape of one row if dimension 0 is the batch and all others are fixed, else None."""
        fixed = tuple(size for size in self.shape[1:] if size is not None and size >= 0)
        whole = self.shape[:1] == (None,) and len(fixed) == len(self.shape) - 1
        return fixed if whole else None


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator. `type` is None if the result is not a single tensor (a tuple, the batch size)."""

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    type: TensorType | None = None

    def values(self) -> Iterator[str]:
        """Yield the names of the values that this node reads, in order, with repetitions."""
        yield from (ref.name for ref in self._references() if isinstance(ref, Value))

    def weights(self) -> Iterator[str]:
        """Yield the names of the weights that this node reads."""
        yield from (ref.name for ref in self._references() if isinstance(ref, Weight))

    def map_arguments(self, change: Callable[[Argument], Argument]) -> "Node":
        """Return the node with `change` applied to all its arguments, also within tuples."""
        args = tuple(map_argument(argument, change) for argument in self.args)
        kwargs = tuple((key, map_argument(argument, change)) for key, argument in self.kwargs)
        return replace(self, args=args, kwargs=kwargs)

    def rename_values(self, names: Mapping[str, str]) -> "Node":
        """Return the node reading each value that is in `names` by its new name."""

        def rename(argument: Argument) -> Argument:
            return Value(names.get(argument.name, argument.name)) if isinstance(argument, Value) else argument

        return self.map_arguments(rename)

    def _references(self) -> Iterator[Argument]:
        yield from _flat(self.args)
        for _, argument in self.kwargs:
            yield from _flat((argument,))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which every value is computed before it is read.

    `inputs` are tensors whose dimension 0 is the batch (`shape` leaves it out). `outputs` pairs the name that clients
    see with the name of the value.
    """

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...]

    def weights(self) -> tuple[str, ...]:
        """Return the names of all weights that the graph reads, each once, in order of first use."""
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.weights()))

    def types(self) -> dict[str, TensorType]:
        """Return the type of every value that is one tensor, by name."""
        types = {spec.name: TensorType(spec.dtype, (None, *spec.shape)) for spec in self.inputs}
        return types | {node.name: node.type for node in self.nodes if node.type is not None}

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of each output, without the batch dimension."""
        types = self.types()
        return tuple(TensorSpec(name, types[value].dtype, types[value].row or ()) for name, value in self.outputs)


def map_argument(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Return `argument` with `change` applied to everything in it that is not a tuple."""
    if isinstance(argument, tuple):
        return tuple(map_argument(part, change) for part in argument)
    return change(argument)


def _flat(arguments: tuple[Argument, ...]) -> Iterator[Argument]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument
