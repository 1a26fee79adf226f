"""Moves comparisons of integer inputs to the beginning of a graph, so that the inputs need not be kept for them.

Classifiers on a decoder read the word numbers twice: at the beginning, and at the end to find the last word that is not
padding. Between blocks the word numbers themselves would have to be kept, which no activation can carry; the result of
the comparison is small (`carry`).
"""

from collections.abc import Iterable

from latebind.program.carry import CHEAP_OPERATORS
from latebind.program.cut import batch_only
from latebind.program.graph import Graph, Node
from latebind.program.operators import is_pointwise

WHOLE = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8"})


def hoist_comparisons(graph: Graph) -> Graph:
    """Return the graph with comparisons of integer inputs before all else, equal ones made only once."""
    cheap = batch_only(graph)
    known = {spec.name for spec in graph.inputs if spec.dtype in WHOLE} | cheap
    wanted: set[str] = set()
    for node in graph.nodes:
        if node.name not in cheap and _is_of_whole_numbers(node) and all(name in known for name in node.values()):
            known.add(node.name)
            if node.type is not None and node.type.dtype == "bool":
                wanted.add(node.name)
    for node in reversed(graph.nodes):
        if node.name in wanted:
            wanted.update(node.values())
    first, alias = _shared(node for node in graph.nodes if node.name in wanted)
    rest = (node.rename_values(alias) for node in graph.nodes if node.name not in wanted)
    outputs = tuple((name, alias.get(value, value)) for name, value in graph.outputs)
    return Graph(graph.inputs, (*first, *rest), outputs)


def _is_of_whole_numbers(node: Node) -> bool:
    return node.type is not None and node.type.dtype in WHOLE and (node.op in CHEAP_OPERATORS or is_pointwise(node.op))


def _shared(nodes: Iterable[Node]) -> tuple[list[Node], dict[str, str]]:
    """Return those nodes that compute something new, and for each other node the one that computes the same."""
    first: dict[object, str] = {}
    alias: dict[str, str] = {}
    kept = []
    for given in nodes:
        node = given.rename_values(alias)
        name = first.setdefault((node.op, repr(node.args), repr(node.kwargs)), node.name)  # 1, 1.0 and True differ
        if name == node.name:
            kept.append(node)
        else:
            alias[node.name] = name
    return kept, alias
