"""`late`: evicts single pieces, those first that are worth least until their model runs again, knowing who waits.

The worth of a byte is the seconds that it takes to load it again (of a learned cache: that it saves a request), divided
by the time until its model is requested next. For a model that requests wait for, that is the time to serve the
requests before them; for any other model it is longer than the time to serve all waiting requests.

The model that is being loaded is a candidate too, with the pieces that have run. Where these are worth least, the model
passes through a part of the memory that is smaller than itself, and no other model loses anything.
"""

from dataclasses import dataclass
from itertools import islice
from math import inf

from latebind.domain.config import ResidencyConfig
from latebind.residency.importance import FEW, ByImportance
from latebind.residency.model_state import ModelState
from latebind.residency.piece_groups import (
    Candidate,
    PieceGroup,
    PieceGroups,
    by_worth,
    choose_victims,
    is_in_memory,
    piece_groups_of,
)
from latebind.residency.policy import MemoryView, Victim, first_whole
from latebind.residency.rates import Gaps, JumpingGaps, MovingGaps

JUMP = 0.03  # probability that a model's rate changes after a request; .01 and .1 are within 1 %
ALPHA_OF_ALL = 0.02  # weight of the newest gap between any two requests
AT_ONCE = 2  # models whose groups are looked at together


class Late(ByImportance):
    """The default policy: evicts stages and learned caches, or whole models where `stages` is off."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self.whole = not config.stages
        self._gaps: Gaps = JumpingGaps(config.window, JUMP)
        self._all_gaps = MovingGaps(ALPHA_OF_ALL, config.window)  # between requests for any model
        self._scores: dict[str, _Scored] = {}
        self._waiting = 0
        self._tailed = False  # whether any model has a tail
        self._wanted: ModelState | None = None
        self._idle = False  # whether no request waits that a load would delay; always False with more than `FEW` models

    def requested(self, model: ModelState, now: float) -> None:
        """Update the rates of the model and of all requests."""
        self._gaps.observe(model.name, now)
        self._all_gaps.observe("", now)
        super().requested(model, now)

    def gain(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of its stages, whether they are in memory or not."""
        return self._groups_of(model).stage_seconds / self._until(model, now)

    def worth(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of what would be evicted first, as if loads were never idle."""
        for group in self._groups_of(model).groups:
            if is_in_memory(model, group):
                return group.seconds / self._until(model, now)
        return 0.0

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Choose what is worth least."""
        self._waiting = view.waiting
        self._wanted = wanted
        self._idle = not view.waiting and len(view.evictable) <= FEW
        if self.whole:
            return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)
        return self._pieces(view, need, now)

    def _pieces(self, view: MemoryView, need: int, now: float) -> list[Victim]:
        """Look at the groups of ever more models until they free enough.

        Where tails are groups of their own, go on until no model is left that could be cheaper.
        """
        models, size = self._queue.ascending(view.evictable, now), 0
        candidates: list[Candidate] = []
        victims: list[Victim] = []
        dearest = inf
        while some := list(islice(models, AT_ONCE)):
            if victims and self._importance(some[0], now) >= dearest:
                break
            for model in some:
                scored = self._scores[model.name]
                until = scored.until
                candidates += [
                    (group.seconds / until, model.name, model, group) for group in self._offered(model, scored.groups)
                ]
                size += model.bytes
            if size >= need:
                candidates.sort(key=by_worth)
                victims, dearest = choose_victims(candidates, need)
                if victims and not (self._idle and self._tailed):
                    break
        return victims

    def _importance(self, model: ModelState, now: float) -> float:
        """Return the worth of a byte of what would be evicted first of a model."""
        scored = self._scores.get(model.name)
        if scored is None or scored.groups.footprint is not model.footprint:
            scored = self._regroup(model)
        scored.until = until = self._until(model, now) if self._waiting else self._gaps.gap(model.name, now)
        for group in self._offered(model, scored.groups):
            if not model.resident.isdisjoint(group.pieces) or (model.parts and is_in_memory(model, group)):
                return group.seconds / until
        return 0.0

    def _until(self, model: ModelState, now: float) -> float:
        """Return the expected seconds until a model is requested or, where requests wait, served next."""
        if not self._waiting:
            return self._gaps.gap(model.name, now)
        per_request = self._all_gaps.gap("", now)
        if model.waiting and model.queue_position is not None:
            return per_request * (model.queue_position + 1)
        return per_request * self._waiting + self._gaps.gap(model.name, now)

    def _offered(self, model: ModelState, groups: PieceGroups) -> list[PieceGroup]:
        """Return the groups of a model. The tail of the wanted model is none: it is loaded after all the rest."""
        return groups.idle if self._idle and model is not self._wanted else groups.groups

    def _groups_of(self, model: ModelState) -> PieceGroups:
        scored = self._scores.get(model.name)
        if scored is None or scored.groups.footprint is not model.footprint:
            scored = self._regroup(model)
        return scored.groups

    def _regroup(self, model: ModelState) -> "_Scored":
        scored = self._scores[model.name] = _Scored(piece_groups_of(model.footprint, trims=not self.whole))
        self._tailed = self._tailed or scored.groups.tailed
        return scored


@dataclass(slots=True)
class _Scored:
    """The groups of a model, and the seconds until it is requested next, as of the last time it was scored."""

    groups: PieceGroups
    until: float = inf
