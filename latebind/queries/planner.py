"""What a planner sees of a query and answers: which model is to answer a step (GATI, section 5.1). Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from latebind.domain.outlook import Outlook
from latebind.domain.query import Node, Query
from latebind.queries.branches import Branches


@dataclass(frozen=True, slots=True)
class PlanView:
    """A query at one moment: `left` seconds are left of its deadline, and the nodes in `open` may still run.

    When it came it was `allowed` so many, less what lies between its steps; 0: nobody knows.
    `outlook` tells of a model what a request is to expect that comes now; `branches` how often conditions hold.
    """

    query: Query
    open: frozenset[int]
    left: float
    outlook: Callable[[str], Outlook]
    branches: Branches
    allowed: float = 0.0

    def node(self, number: int) -> Node:
        """Return a node."""
        return self.query.nodes[number]

    def outlooks(self, number: int) -> list[Outlook]:
        """Return what to expect of each option of a node."""
        return [self.outlook(model) for model in self.query.nodes[number].models]


class Choice(Struct, frozen=True, gc=False):
    """The option that a node is to run with, and how many seconds it may take."""

    option: int
    budget: float


class Planner(Protocol):
    """Picks models. Pure, but it may keep what it has worked out."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return what `node`, which is open, is to run with."""
        ...


def most_accurate(view: PlanView, node: int, budget: float, seconds: Sequence[float]) -> Choice:
    """Return the most accurate option whose `seconds` are within `budget`, the quickest where none is.

    Of equally accurate ones it is the quicker.
    """
    accuracies = view.node(node).accuracies
    fitting = [i for i, taken in enumerate(seconds) if taken <= budget]
    if not fitting:
        return Choice(min(range(len(seconds)), key=seconds.__getitem__), budget)
    return Choice(max(fitting, key=lambda i: (accuracies[i], -seconds[i])), budget)
