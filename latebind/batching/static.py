"""Graph batching with batches of one size, filled up with dummy rows (Ebird, section III-A).

A baseline for simulations: workers of the live engine compute only the rows that they have.
"""

from msgspec.structs import replace

from latebind.batching.decisions import Decision, Launch
from latebind.batching.graph import GraphBatching
from latebind.batching.view import WorkView


class Static(GraphBatching):
    """Launches when graph batching does; every batch has as many rows as the largest."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Decide as graph batching, and pad the batch."""
        decision = super().decide(view, now)
        if not isinstance(decision, Launch):
            return decision
        return replace(decision, padded=self.room(view, view.models.named(decision.model)))
