"""Vocabulary sizes: values of an input that is looked up in an embedding table must be valid row numbers."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.graph import Graph, Value, Weight

EMBEDDING = "aten.embedding.default"


def vocabulary_size(graph: Graph, weights: Mapping[str, Tensor], name: str) -> int | None:
    """Return the rows of the smallest table that the input `name` is looked up in; None if there is no such table."""
    tables = [
        node.args[0]
        for node in graph.nodes
        if node.op == EMBEDDING and node.args[1] == Value(name) and isinstance(node.args[0], Weight)
    ]
    return min((len(weights[table.name]) for table in tables), default=None)


def with_limits(graph: Graph, weights: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
    """Return the inputs of the graph with the upper limit of their values, where there is one."""
    return tuple(replace(spec, limit=vocabulary_size(graph, weights, spec.name)) for spec in graph.inputs)


def without_limits(inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the inputs as their graph describes them."""
    return tuple(replace(spec, limit=None) for spec in inputs)
