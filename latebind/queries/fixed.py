"""Planners that look at no deadline: the bounds between which others lie. Pure."""

from math import inf

from latebind.domain.query import PlannerConfig
from latebind.queries.planner import most_accurate
from latebind.queries.view import Choice, PlanView


class Quickest:
    """Always the model that is expected to answer first."""

    def __init__(self, config: PlannerConfig) -> None:
        del config

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return it, with all the time that is left."""
        outlooks = view.outlooks(node)
        return Choice(min(range(len(outlooks)), key=lambda i: outlooks[i].wait + outlooks[i].whole), view.left)


class Best:
    """Always the most accurate model; of equally accurate ones the quicker."""

    def __init__(self, config: PlannerConfig) -> None:
        del config

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return it, with all the time that is left."""
        seconds = [outlook.wait + outlook.whole for outlook in view.outlooks(node)]
        return Choice(most_accurate(view, node, inf, seconds).option, view.left)
