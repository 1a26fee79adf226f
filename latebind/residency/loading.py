"""What is loaded next, and what is evicted to make room for it. Pure."""

from collections.abc import Hashable, Iterable, Sequence
from math import inf

from latebind.domain.actions import Action, Evict, Load
from latebind.residency.importance import ByImportance
from latebind.residency.memory import ModelState, Victim
from latebind.residency.policy import EvictionPolicy
from latebind.residency.state import ResidencyState

MOST_BACK_OFF = 60.0  # seconds
MARGIN = 1.3  # worth of the wanted model over that of its victims: of equal models none is evicted for the other
STAYS = 4.0  # times its load time that a model stays: so at most a fifth of the memory is being loaded for such models


class BackOff:
    """Exponential back-off: `first` seconds after one failure, twice as long after each further one in a row."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures: dict[Hashable, tuple[int, float]] = {}  # failures in a row, and the time of the next attempt

    def failed(self, name: Hashable, now: float) -> None:
        """Note that a load has failed."""
        times = self._failures.get(name, (0, 0.0))[0] + 1
        self._failures[name] = times, now + min(MOST_BACK_OFF, self._first * 2.0 ** (times - 1))

    def loaded(self, name: Hashable) -> None:
        """Note that a load has succeeded."""
        self._failures.pop(name, None)

    def is_on(self, name: Hashable, now: float) -> bool:
        """Return whether it is too early for the next attempt."""
        return now < self._failures.get(name, (0, -inf))[1]


class LoadPlanner:
    """Starts loads, after it has made room: it evicts what `policy` chooses.

    If models are loaded whole, one load has all that is missing. One load is under way at a time: for started requests,
    then for waiting ones, then for models that requests were `refused` for, then learned caches of complete models.
    What could not be loaded, a model or a cache, is tried again after a while.

    No request waits for refused models, so they need not be loaded, and what is in memory stays unless the policy
    values the wanted model more. Policies that keep models by importance are compared with a margin, because importance
    is an estimate. Any other policy values the model that was requested last most. A model stays for a while after it
    has been loaded, so that refused requests cannot keep the memory busy with nothing but loads.
    """

    def __init__(self, state: ResidencyState, policy: EvictionPolicy) -> None:
        self._state = state
        self._policy = policy
        self.back_off = BackOff(state.config.back_off)
        self.refused: dict[str, ModelState] = {}  # the earliest first
        self._without_cache: dict[
            str, ModelState
        ] = {}  # complete but for a cache, in the order in which they became so
        self._complete_at: dict[str, float] = {}  # when models were last complete
        self._ends = 0.0  # when the load that is under way is expected to end

    def loaded(self, model: ModelState, pieces: Sequence[int], now: float) -> None:
        """Note that pieces have been loaded."""
        for name in (model.name, *[(model.name, piece) for piece in pieces]):
            self.back_off.loaded(name)
        if model.complete:
            self.refused.pop(model.name, None)
            self._complete_at[model.name] = now
        self._look_for_caches(model)

    def failed(self, model: ModelState, pieces: Sequence[int], now: float) -> None:
        """Note that pieces could not be loaded."""
        for piece in pieces:
            self.back_off.failed((model.name, piece), now)
        if not model.complete:  # else only a learned cache, without which the model serves
            self.back_off.failed(model.name, now)
        self.refused.pop(model.name, None)

    def _look_for_caches(self, model: ModelState) -> None:
        if model.complete and model.missing_caches:
            self._without_cache[model.name] = model
        else:
            self._without_cache.pop(model.name, None)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the load that is under way is expected to end; 0 if there is none."""
        return max(0.0, self._ends - now) if self._state.is_loading else 0.0

    # What is loaded next --------------------------------------------------------------------------------------------

    def next_model(self, now: float) -> ModelState | None:
        """Return the model to load: one that runs without all its stages, else one that requests wait for.

        After a failed load the next one is for a batch that cannot go on without it. Of models that requests wait for,
        overdue ones go first, then the one whose requests have waited longest, in sum, per second of loading.
        """
        state = self._state
        for batch in state.started():
            model = state.memory.models[batch.spec.name]
            if self.back_off.is_on(model.name, now) and state.is_resident(batch):
                continue
            if any(piece >= batch.stage for piece in model.missing):
                return model
        incomplete = [model for model in state.waiting.values() if not model.complete]
        if not incomplete:
            return None
        limit = self._overdue_after()
        overdue = [model for model in incomplete if self._has_waited(model, limit, now)]
        if overdue:
            return min(overdue, key=state.oldest)

        def urgency(model: ModelState) -> tuple[float, float]:
            seconds = max(model.load_seconds, 1e-9)
            return state.lanes[model.name].waited(now) / seconds, model.waiting / seconds

        return max(incomplete, key=urgency)

    def load(self, now: float, actions: list[Action]) -> None:
        """Start the next load if there is room for it, or room can be made."""
        state, model = self._state, self.next_model(now)
        if model is None:
            self._load_unasked(now, actions)
            return
        is_new, pieces = state.set_target(model), self._next_pieces(model)
        if is_new and not state.whole:
            # It starts before there is room for all of it if it is larger than the budget, or no request waits for
            # another model. The policy then chooses, piece by piece, between other models and what of it has run.
            alone = all(other is model for other in state.waiting.values())
            if alone or model.stage_bytes > state.memory.budget:
                state.streaming.add(model.name)
        # Room for all of it is made at once. If it were made piece by piece over a long load, each model that is idle
        # for a moment would lose its last stages.
        need = model.size_of(pieces if model.name in state.streaming else model.missing) - state.memory.free
        if need > 0 and not self._make_room(model, pieces, need, now, actions):
            state.draining = self._has_waited(model, self._overdue_after(), now)
            return
        state.draining = False
        self._start(model, pieces, now, actions)

    def load_refused(self, now: float, actions: list[Action]) -> bool:
        """Load more of a model that requests were refused for, if no request waits for a load.

        Takes the first model for which there is room, or which is worth more than what would be evicted for it; for one
        that is larger than the memory, that is room for its next piece. Models for which neither holds are forgotten.
        Returns whether a load was started.
        """
        state = self._state
        for model in list(self.refused.values()):
            fits = model.stage_bytes <= state.memory.budget
            need = model.size_of(model.missing if fits else self._next_pieces(model)) - state.memory.free
            if need > 0 and not self._make_room_for_refused(model, need, now, actions):
                del self.refused[model.name]
                continue
            state.set_target(model)
            self._start(model, self._next_pieces(model), now, actions)
            return True
        return False

    def _load_unasked(self, now: float, actions: list[Action]) -> None:
        """Load what no request waits for: models that requests were refused for, then learned caches that fit."""
        state = self._state
        # The request that had waited too long has gone.
        if state.draining and all(model.complete for model in state.waiting.values()):
            state.draining = False
            state.dirty.update(state.waiting)
        free = state.memory.free
        if self.load_refused(now, actions) or state.target is not None or free <= 0:
            return
        for model in self._without_cache.values():
            for piece in model.missing_caches:
                if model.footprint.sizes[piece] <= free and not self.back_off.is_on((model.name, piece), now):
                    state.set_target(model)
                    self._start(model, (piece,), now, actions)
                    return

    def _start(self, model: ModelState, pieces: tuple[int, ...], now: float, actions: list[Action]) -> None:
        begins = not model.resident
        self._ends = now + (model.seconds_of(pieces) + model.footprint.fixed * begins)
        self._state.memory.begin(model.name, pieces)
        actions.append(Load(model.name, pieces, begins))
        self._state.dirty.add(model.name)

    def _next_pieces(self, model: ModelState) -> tuple[int, ...]:
        """Return the pieces of the next load: all that are missing, or the first one that started requests need."""
        if self._state.whole:
            return model.missing
        return (tuple([piece for piece in model.missing if model.needed_from <= piece < inf]) or model.missing)[:1]

    def _overdue_after(self) -> float:
        """Return the seconds of waiting after which a model is overdue: loads that go first count against patience."""
        patience = self._state.config.patience
        ahead = sum([model.load_seconds for model in self._state.waiting.values()])
        return max(patience - ahead, 0.25 * patience)

    def _has_waited(self, model: ModelState, seconds: float, now: float) -> bool:
        return model.waiting > 0 and now - self._state.lanes[model.name].oldest.arrived >= seconds

    # Evictions ------------------------------------------------------------------------------------------------------

    def restore_budget(self, now: float, actions: list[Action]) -> None:
        """Evict what exceeds the budget, if a piece turned out larger than expected."""
        memory = self._state.memory
        if memory.free < 0:
            first = next(iter(memory.models.values()))
            self._evict(self._victims(-memory.free, first, now), now, actions)

    def give_back(self, model: ModelState, now: float, actions: list[Action]) -> None:
        """Evict all of an unused model; it is no longer loaded for requests that were refused."""
        self.refused.pop(model.name, None)
        self._evict([Victim(model.name, model.evictable_pieces())], now, actions)

    def _make_room(
        self, model: ModelState, pieces: tuple[int, ...], need: int, now: float, actions: list[Action]
    ) -> bool:
        """Evict `need` bytes so that `pieces` of `model` can be loaded next; return whether that made enough room.

        If nothing can progress, other models that requests wait for may be evicted too.
        """
        state = self._state
        stuck = not state.can_progress()
        if stuck or state.draining:
            for other in state.waiting.values():
                pinned = (other is model and model.needed_from == inf) or (state.must_pin(other) and not stuck)
                state.pin(other, pinned)
        victims = self._victims(need, model, now)
        if not victims and stuck and model.name in state.streaming:  # its own last stages take the place of the next
            state.pin(model, False)
            victims = self._victims(need, model, now)
        self._evict(victims, now, actions)
        state.dirty.update(state.waiting)
        return bool(victims)

    def _make_room_for_refused(self, model: ModelState, need: int, now: float, actions: list[Action]) -> bool:
        """Evict `need` bytes of other models for one that no request waits for, if that pays; return whether it did."""
        state = self._state
        state.pin(model, True)  # the pieces of it that are in memory already
        victims = self._victims(need, model, now)
        state.pin(model, state.must_pin(model))
        if not victims or not self._pays(model, victims, now):
            return False
        self._evict(victims, now, actions)
        return True

    def _pays(self, wanted: ModelState, victims: Sequence[Victim], now: float) -> bool:
        """Return whether these victims should be evicted for a model that no request waits for."""
        policy, loss = self._policy, 0.0
        for victim in victims:
            model = self._state.memory.models[victim.model]
            if now - self._complete_at.get(model.name, -inf) < STAYS * model.footprint.penalty:
                return False
            if isinstance(policy, ByImportance):
                # Without one of its stages all of a model is of no use: deadlines leave no time to load a stage again.
                loses_stage = min(victim.pieces) < model.footprint.stages
                loss += policy.worth(model, now) * (model.bytes if loses_stage else model.size_of(victim.pieces))
        if not isinstance(policy, ByImportance):
            return True
        return policy.gain(wanted, now) * wanted.stage_bytes > MARGIN * loss

    def _victims(self, need: int, model: ModelState, now: float) -> list[Victim]:
        """Ask the policy. Requests that wait for `model` do not count: what is loaded now will serve them."""
        waiting = list(self._state.waiting.values())
        first = min(map(self._state.oldest, waiting), default=0)
        for other in waiting:
            other.queue_position = self._state.oldest(other) - first
        own_waiting, model.waiting, model.queue_position = model.waiting, 0, None
        view = self._state.memory.view(sum([other.waiting for other in waiting]))
        victims = self._policy.victims(view, need, model, now)
        model.waiting = own_waiting
        return victims

    def _evict(self, victims: Iterable[Victim], now: float, actions: list[Action]) -> None:
        for victim in victims:
            model = self._state.memory.evict(victim)
            if not model.resident:
                self._policy.evicted(model, now)
            self._look_for_caches(model)
            self._state.dirty.add(model.name)
            actions.append(Evict(victim.model, victim.pieces))
