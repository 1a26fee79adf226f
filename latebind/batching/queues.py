"""The policy `queues`: requests wait for each other at the stage that they have reached. A baseline for the stack."""

from latebind.batching.base import Stacked
from latebind.batching.decisions import Decision, GoOn
from latebind.batching.table import BatchTable, StageQueues, SubBatch
from latebind.batching.view import WorkView, launch

ENOUGH = 0.5  # share of the largest batch that is worth running


class DeepestFirst(Stacked):
    """Runs the deepest stage where enough requests wait; requests that are short of time go first."""

    def table(self, granularity: int) -> BatchTable:
        """Return empty queues."""
        return StageQueues(min(granularity, self._config.max_batch or granularity))

    def decide(self, view: WorkView, now: float) -> Decision:
        """Run requests that are short of time, else the deepest queue with enough, else new ones, else the deepest."""
        places = sorted(range(len(view.entries)), key=lambda place: -view.entries[place].stage)
        for place in places:
            if self._hurries(view, view.entries[place], now):
                return GoOn(place)
        for place in places:
            entry = view.entries[place]
            if len(entry.members) >= ENOUGH * self.batch_limit(view.model_of(entry)):
                return GoOn(place)
        for model in self.in_turn(view):
            return launch(model, model.queue.first(min(self.batch_limit(model), view.granularity)))
        return GoOn(places[0])

    def _hurries(self, view: WorkView, entry: SubBatch, now: float) -> bool:
        """Return whether a member must go on now, because it would be too late after one more batch of new requests."""
        model = view.model_of(entry)
        limit = self.batch_limit(model)
        rest = model.estimate.rest(len(entry.members), entry.stage, entry.step, entry.inputs)
        last = min(request.deadline for request in entry.members.values())
        return now + rest + model.estimate.between(limit, entry.stage, 0, entry.inputs) > last
