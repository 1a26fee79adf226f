"""What is true or false of whole numbers in the inputs is found out first, so that the numbers are not kept for it.

Classifiers on a decoder look at the words twice: at the beginning, and at the end for the last that counts. Between
blocks the words would have to be kept as they are, which no activation can hold; which of them count is small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace as changed

from latebind.program.carry import AGAIN
from latebind.program.cut import batch_only
from latebind.program.graph import Argument, Graph, Node, Value, replace
from latebind.program.operators import is_pointwise

WHOLE = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8"})


def compare_early(graph: Graph) -> Graph:
    """Return the graph with comparisons of whole numbers in its inputs before all else, each made once."""
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
    rest = (_renamed(node, alias) for node in graph.nodes if node.name not in wanted)
    outputs = tuple((name, alias.get(value, value)) for name, value in graph.outputs)
    return Graph(graph.inputs, (*first, *rest), outputs)


def _is_of_whole_numbers(node: Node) -> bool:
    return node.type is not None and node.type.dtype in WHOLE and (node.op in AGAIN or is_pointwise(node.op))


def _shared(nodes: Iterable[Node]) -> tuple[list[Node], dict[str, str]]:
    """Return those nodes that compute something new, and for each other one which of them computes the same."""
    first: dict[object, str] = {}
    alias: dict[str, str] = {}
    kept = []
    for given in nodes:
        node = _renamed(given, alias)
        name = first.setdefault((node.op, repr(node.args), repr(node.kwargs)), node.name)  # 1, 1.0 and True differ
        if name == node.name:
            kept.append(node)
        else:
            alias[node.name] = name
    return kept, alias


def _renamed(node: Node, alias: Mapping[str, str]) -> Node:
    def change(argument: Argument) -> Argument:
        return Value(alias.get(argument.name, argument.name)) if isinstance(argument, Value) else argument

    args = tuple(replace(argument, change) for argument in node.args)
    return changed(node, args=args, kwargs=tuple((key, replace(argument, change)) for key, argument in node.kwargs))
