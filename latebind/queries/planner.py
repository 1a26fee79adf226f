"""The interface of planners, which pick the model that answers each step (GATI, section 5.1). Pure."""

from collections.abc import Sequence
from typing import Protocol

from latebind.queries.view import Choice, PlanView


class Planner(Protocol):
    """Picks models. It has no side effects, but may cache what it has computed."""

    def pick(self, view: PlanView, node: int) -> Choice:
        """Return the choice for `node`, which is open."""
        ...


def most_accurate(view: PlanView, node: int, budget: float, seconds: Sequence[float]) -> Choice:
    """Return the most accurate option whose `seconds` are within `budget`, or the fastest if there is none.

    Of equally accurate options it takes the faster one.
    """
    accuracies = view.query.nodes[node].accuracies
    fitting = [i for i, taken in enumerate(seconds) if taken <= budget]
    if not fitting:
        return Choice(min(range(len(seconds)), key=seconds.__getitem__), budget)
    return Choice(max(fitting, key=lambda i: (accuracies[i], -seconds[i])), budget)
