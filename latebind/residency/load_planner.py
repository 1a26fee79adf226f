"""Decides what is loaded next: for started requests, then for waiting ones, then for refused ones. Pure.

One load is under way at a time.
"""

from collections.abc import Sequence
from functools import partial
from math import inf

from latebind.domain.actions import Action, Load
from latebind.domain.config import ResidencyConfig
from latebind.residency.back_off import BackOff
from latebind.residency.base import Victim
from latebind.residency.eviction import Evictor
from latebind.residency.load_order import LoadOrder
from latebind.residency.missing_caches import MissingCaches
from latebind.residency.model_state import ModelState
from latebind.residency.refused import RefusedModels
from latebind.residency.state import ResidencyState


class LoadPlanner:
    """Starts loads, after room has been made. Where models are loaded `whole`, one load has all that is missing."""

    def __init__(
        self,
        config: ResidencyConfig,
        state: ResidencyState,
        evictor: Evictor,
        order: LoadOrder,
        refused: RefusedModels,
        missing_caches: MissingCaches,
        back_off: BackOff[str],
        *,
        whole: bool,
    ) -> None:
        self._config = config
        self._state = state
        self._evictor = evictor
        self._order = order
        self._refused = refused
        self._missing_caches = missing_caches
        self._back_off = back_off
        self._whole = whole
        self._ends = 0.0  # when the load that is under way is expected to end

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the load that is under way is expected to end; 0 where there is none."""
        return max(0.0, self._ends - now) if self._state.is_loading else 0.0

    def next_model(self, now: float) -> ModelState | None:
        """Return the model to load: one that runs without all its stages, else one that requests wait for.

        After a failed load the next one is for a batch that cannot go on without it.
        """
        state = self._state
        for batch in state.started():
            model = state.memory.models[batch.spec.name]
            if self._back_off.is_on(model.name, now) and state.is_resident(batch):
                continue
            if any(piece >= batch.stage for piece in model.missing):
                return model
        waiting = state.waiting
        if all(model.complete for model in waiting.values()) or (not self._config.beside and state.busy()):
            return None
        if self._config.order == "fifo":
            first = min(waiting.values(), key=self._order.oldest)
            return None if first.complete or state.busy() else first
        return self._order.next(waiting, now)

    def load(self, now: float, actions: list[Action]) -> None:
        """Start the next load if there is room for it, or room can be made."""
        state, model = self._state, self.next_model(now)
        if model is None:
            self._load_unasked(now, actions)
            return
        is_new, pieces = state.set_target(model), self._next_pieces(model)
        if is_new and not self._whole and self._streams_through(model):
            state.streaming.add(model.name)
        # Room for all of it is made at once. If it were made piece by piece over a long load, each model that is idle
        # for a moment would lose its last stages.
        wanted = pieces if model.name in state.streaming else model.missing
        need = model.missing_bytes(wanted) - state.memory.free
        # What is there of these pieces in part may itself be evicted to make the room, and is then missing too.
        own = sum([model.resident_bytes(piece) for piece in pieces if piece < model.needed_from < inf])
        if need > 0 and not self._evictor.make_room(model, pieces, need + own, now, actions):
            state.draining = self._order.is_overdue(model, state.waiting, now)
            return
        state.draining = False
        self._start(model, pieces, now, actions)

    def load_refused(self, now: float, actions: list[Action]) -> bool:
        """Load more of a model that requests were refused for, where no request waits for a load.

        Takes the first model for which there is room, or which is worth more than what would be evicted for it; for one
        that is larger than the memory, that is room for its next piece. Models for which neither holds are forgotten.
        Returns whether a load was started.
        """
        state = self._state
        if not self._config.beside and state.busy():
            return False
        for model in self._refused:
            fits = model.stage_bytes <= state.memory.budget
            wanted, pays = model.missing if fits else self._next_pieces(model), partial(self._pays, model, now)
            need = model.missing_bytes(wanted) - state.memory.free
            if need > 0 and not self._evictor.make_room_if(model, need, pays, now, actions):
                self._refused.discard(model)
                continue
            state.set_target(model)
            self._start(model, self._next_pieces(model), now, actions)
            return True
        return False

    def _load_unasked(self, now: float, actions: list[Action]) -> None:
        """Load what no request waits for: models that requests were refused for, then learned caches."""
        state = self._state
        # The request that had waited too long has gone.
        if state.draining and all(model.complete for model in state.waiting.values()):
            state.draining = False
            state.dirty.update(state.waiting)
        if not self.load_refused(now, actions) and state.target is None:
            found = self._missing_caches.next(state.memory.free, now)
            if found is not None:
                model, piece = found
                state.set_target(model)
                self._start(model, (piece,), now, actions)

    def _start(self, model: ModelState, pieces: tuple[int, ...], now: float, actions: list[Action]) -> None:
        begins = model.absent
        resident = tuple([model.resident_bytes(piece) for piece in pieces]) if model.parts else ()
        self._ends = now + (model.seconds_of(pieces) + model.footprint.fixed * begins)
        self._state.memory.begin(model.name, pieces)
        actions.append(Load(model.name, pieces, begins, resident))
        self._state.dirty.add(model.name)

    def _next_pieces(self, model: ModelState) -> tuple[int, ...]:
        """Return the pieces of the next load: all that are missing, or the first one that started requests need."""
        ahead = tuple([piece for piece in model.missing if model.needed_from <= piece < inf]) or model.missing
        return model.missing if self._whole else ahead[:1]

    def _streams_through(self, model: ModelState) -> bool:
        """Return whether a model starts before there is room for all of it.

        It does where it is larger than the budget, or no request waits for another model. The policy then chooses,
        piece by piece, between other models and the pieces of this one that have run.
        """
        alone = all(other is model for other in self._state.waiting.values())
        return alone or model.size_of(tuple(range(model.footprint.stages))) > self._state.memory.budget

    def _pays(self, wanted: ModelState, now: float, victims: Sequence[Victim]) -> bool:
        return self._refused.pays(wanted, victims, self._state.memory.models, now)
