"""What a planner sees of a query, and what it answers. Pure.

These are msgspec's classes, which are not compiled (decision 47).
"""

from collections.abc import Callable

from msgspec import Struct

from latebind.domain.outlook import Outlook
from latebind.domain.query import Query
from latebind.queries.branches import Branches


class PlanView(Struct, frozen=True, gc=False):
    """A query at one estimates: `left` seconds are left of its deadline, and the nodes in `open` may still run.

    When it came it was `allowed` so many, less what lies between its steps; 0: nobody knows.
    `outlook` tells of a model what a request is to expect that comes now, and is the same function as long as it tells
    the same; `branches` how often conditions hold.
    """

    query: Query
    open: frozenset[int]
    left: float
    outlook: Callable[[str], Outlook]
    branches: Branches
    allowed: float = 0.0

    def outlooks(self, number: int) -> list[Outlook]:
        """Return what to expect of each option of a node."""
        return list(map(self.outlook, self.query.nodes[number].models))


class Choice(Struct, frozen=True, gc=False):
    """The option that a node is to run with, and how many seconds it may take."""

    option: int
    budget: float
