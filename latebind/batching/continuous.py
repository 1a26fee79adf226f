"""Cellular and continuous batching: new requests join a batch at the next step of a recurrent stage."""

from latebind.batching.decisions import Decision, GoOn
from latebind.batching.graph import GraphBatching
from latebind.batching.view import ModelView, WorkView, launch
from latebind.domain.model import StageKind


class Continuous(GraphBatching):
    """At each decoder step, all waiting requests run the earlier stages and join (Orca, Yu et al. 2022).

    Requests that are catching up are not overtaken. Stages that run once are never interrupted: a model of these alone
    is batched as by `graph`.
    """

    def decide(self, view: WorkView, now: float) -> Decision:
        """Launch as many requests of the decoding model as there is room for."""
        if not view.entries:
            return super().decide(view, now)
        top = view.entries[-1]
        model = view.model_of(top)
        room = self.room(view, model)
        if len(view.entries) > 1 or top.kind is not StageKind.DECODER or room <= 0 or not model.queue:
            return GoOn()
        return launch(model, model.queue.first(room))


class Cellular(Continuous):
    """Gao et al. 2018 (LazyBatching, section III-B): only a model that is recurrent throughout is joined on its way."""

    def decide(self, view: WorkView, now: float) -> Decision:
        """Let new requests into a running cell; any other model is batched as a whole graph."""
        if view.entries and not _is_recurrent(view.model_of(view.entries[-1])):
            return GoOn()
        return super().decide(view, now)


def _is_recurrent(model: ModelView) -> bool:
    return model.spec.kind(0) is StageKind.DECODER
