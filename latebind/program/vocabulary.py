"""How many words a model knows: values of an input that is looked up in a table must be numbers of its rows."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.graph import Graph, Value, Weight

EMBEDDING = "aten.embedding.default"


def words(graph: Graph, weights: Mapping[str, Tensor], name: str) -> int | None:
    """Return the rows of the smallest table that the input `name` is looked up in, None where there is none."""
    tables = [
        node.args[0]
        for node in graph.nodes
        if node.op == EMBEDDING and node.args[1] == Value(name) and isinstance(node.args[0], Weight)
    ]
    return min((len(weights[table.name]) for table in tables), default=None)


def limited(graph: Graph, weights: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
    """Return the inputs of the graph, each with the limit of its values where it has one."""
    return tuple(replace(spec, limit=words(graph, weights, spec.name)) for spec in graph.inputs)


def unlimited(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs as their graph describes them."""
    return tuple(replace(spec, limit=None) for spec in inputs)
