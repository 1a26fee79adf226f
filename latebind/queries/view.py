"""Planners, which pick the model of each step (GATI, section 5.1): what they see and what they return. Pure.

These are msgspec classes, which are not compiled.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from latebind.domain.costs import Outlook
from latebind.domain.query import Query
from latebind.queries.prospect import Branches


class PlanView(Struct, frozen=True, gc=False):
    """A query at one moment: `left` seconds remain of its deadline, and the nodes in `open` may still run.

    On arrival it had `allowed` seconds, without the time between its steps; 0: not known. `outlook` returns what a
    request of a model can expect now; it is the same function as long as its results stay the same. `branches` says how
    often conditions hold.
    """

    query: Query
    open: frozenset[int]
    left: float
    outlook: Callable[[str], Outlook]
    branches: Branches
    allowed: float = 0.0

    def outlooks(self, number: int) -> list[Outlook]:
        """Return the outlook of each option of a node."""
        return list(map(self.outlook, self.query.nodes[number].models))


class Choice(Struct, frozen=True, gc=False):
    """The option that a node is to run with, and how many seconds it may take."""

    option: int
    budget: float


class Planner(Protocol):
    """Picks models. It has no side effects, but may keep what it has worked out."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`, which is open."""
