"""Planners that look at no deadline: the bounds between which others lie. Pure."""

from latebind.queries.planner import Choice, PlanView


class Quickest:
    """Always the model that is expected to answer first."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return it, with all the time that is left."""
        outlooks = view.outlooks(node)
        return Choice(min(range(len(outlooks)), key=lambda i: outlooks[i].wait + outlooks[i].whole), view.left)


class Best:
    """Always the most accurate model; of equally accurate ones the first."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return it, with all the time that is left."""
        accuracies = view.node(node).accuracies
        return Choice(max(range(len(accuracies)), key=accuracies.__getitem__), view.left)
