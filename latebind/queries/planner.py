"""Who says which model is to answer a step (GATI, section 5.1). Pure."""

from collections.abc import Sequence
from typing import Protocol

from latebind.queries.view import Choice, PlanView


class Planner(Protocol):
    """Picks models. Pure, but it may keep what it has worked out."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return what `node`, which is open, is to run with."""
        ...


def most_accurate(view: PlanView, node: int, budget: float, seconds: Sequence[float]) -> Choice:
    """Return the most accurate option whose `seconds` are within `budget`, the quickest where none is.

    Of equally accurate ones it is the quicker.
    """
    accuracies = view.query.nodes[node].accuracies
    fitting = [i for i, taken in enumerate(seconds) if taken <= budget]
    if not fitting:
        return Choice(min(range(len(seconds)), key=seconds.__getitem__), budget)
    return Choice(max(fitting, key=lambda i: (accuracies[i], -seconds[i])), budget)
