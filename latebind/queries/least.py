"""The least that a query, or what comes after a node, takes: nobody is in time who has not even that. Pure."""

from collections.abc import Callable

from latebind.domain.outlook import Outlook
from latebind.domain.query import Node, Query

Outlooks = Callable[[str], Outlook]


def least_seconds(query: Query, outlook: Outlooks) -> float:
    """Return the seconds of the longest path whose steps run in any case, each with its quickest model."""
    ends: list[float] = []
    for node in query.nodes:
        begins = max([ends[i] for i in node.after], default=0.0)
        ends.append(begins + (0.0 if node.guarded else _quickest(node, outlook)))
    return max(ends)


def least_seconds_after(query: Query, number: int, outlook: Outlooks) -> float:
    """Return the same for what follows a node; nobody knows yet how long it would wait."""
    ends: dict[int, float] = {number: 0.0}
    for i, node in enumerate(query.nodes):
        before = [ends[j] for j in node.after if j in ends]
        if before and i > number:
            ends[i] = max(before) + (0.0 if node.guarded else min([outlook(m).least for m in node.models]))
    return max(ends.values())


def longest_path(query: Query) -> int:
    """Return how many nodes are on the longest path."""
    steps: list[int] = []
    for node in query.nodes:
        steps.append(1 + max([steps[i] for i in node.after], default=0))
    return max(steps)


def _quickest(node: Node, outlook: Outlooks) -> float:
    return min([found.wait + found.least for found in map(outlook, node.models)])
