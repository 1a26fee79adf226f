"""Planners that ignore the deadline: the bounds between which all others lie. Pure."""

from math import inf

from latebind.domain.query import PlannerConfig
from latebind.queries.planner import most_accurate
from latebind.queries.view import Choice, PlanView


class Quickest:
    """Always picks the model that is expected to answer first."""

    def __init__(self, config: PlannerConfig) -> None:
        del config

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return that model, with all the time that is left as budget."""
        outlooks = view.outlooks(node)
        return Choice(min(range(len(outlooks)), key=lambda i: outlooks[i].wait + outlooks[i].whole), view.left)


class Best:
    """Always picks the most accurate model; of equally accurate ones the faster."""

    def __init__(self, config: PlannerConfig) -> None:
        del config

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return that model, with all the time that is left as budget."""
        seconds = [outlook.wait + outlook.whole for outlook in view.outlooks(node)]
        return Choice(most_accurate(view, node, inf, seconds).option, view.left)
