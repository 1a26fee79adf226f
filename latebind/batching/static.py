"""Graph batching with batches of one size: whoever is missing is made up for by dummies (Ebird, section III-A).

A baseline for simulations: workers of the live engine compute the rows that they have.
"""

from msgspec.structs import replace

from latebind.batching.decisions import Decision, Launch
from latebind.batching.graph import GraphBatching
from latebind.batching.view import WorkView


class Static(GraphBatching):
    """Launches when graph batching does; a worker computes as many rows as it ever does."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Decide as graph batching, and have the batch padded."""
        decision = super().decide(view, now)
        if not isinstance(decision, Launch):
            return decision
        return replace(decision, padded=self.room(view, view.models.named(decision.model)))
