"""What is loaded next, and what is evicted to make room for it. Pure."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf

from latebind.domain.actions import Action, Evict, Load
from latebind.domain.config import ResidencyConfig
from latebind.residency.importance import ByImportance
from latebind.residency.model_state import ModelState
from latebind.residency.policy import EvictionPolicy, Victim
from latebind.residency.state import ResidencyState

MOST_BACK_OFF = 60.0  # seconds
MARGIN = 1.3  # worth of the wanted model over that of its victims: of equal models none is evicted for the other
STAYS = 4.0  # times its load time: so at most a fifth of the memory is being loaded for such models


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


class MissingCaches:
    """The models with all stages in memory and a learned cache missing, in the order in which they became complete.

    A cache that could not be loaded is tried again after `back_off` seconds, twice as many each further time.
    """

    def __init__(self, back_off: float) -> None:
        self._models: dict[str, ModelState] = {}
        self._back_off = BackOff(back_off)

    def update(self, model: ModelState) -> None:
        """Note that pieces of a model have been loaded or evicted."""
        if model.complete and any(piece not in model.resident for piece in _caches(model)):
            self._models[model.name] = model
        else:
            self._models.pop(model.name, None)

    def loaded(self, model: ModelState, pieces: Iterable[int]) -> None:
        """Note that pieces of a model have been loaded."""
        for piece in pieces:
            self._back_off.loaded((model.name, piece))
        self.update(model)

    def failed(self, model: ModelState, pieces: Iterable[int], now: float) -> None:
        """Note that pieces of a model could not be loaded."""
        for piece in pieces:
            self._back_off.failed((model.name, piece), now)

    def next(self, free: int, now: float) -> tuple[ModelState, int] | None:
        """Return the first missing cache that fits into `free` bytes, as its model and its piece; None without one."""
        if free <= 0:
            return None
        for model in self._models.values():
            for piece in _caches(model):
                if piece in model.resident or model.footprint.sizes[piece] > free:
                    continue
                if not self._back_off.is_on((model.name, piece), now):
                    return model, piece
        return None


def _caches(model: ModelState) -> range:
    """Return the pieces of a model that are learned caches."""
    return range(model.footprint.stages, len(model.footprint.sizes))


class RefusedModels:
    """The models that requests were refused for, the earliest first. `policy` says what models are worth.

    No request waits for these models, so they need not be loaded, and what is in memory stays unless the policy holds
    the wanted model to be worth more. A policy that keeps models by importance is asked with a margin, because
    importance is an estimate. Any other policy holds the model that was requested last to be worth most. A model stays
    for a while after it has been loaded, so that refused requests cannot keep the memory busy with nothing but loads.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy if isinstance(policy, ByImportance) else None
        self._models: dict[str, ModelState] = {}
        self._loaded_at: dict[str, float] = {}  # when models were last complete

    def __contains__(self, model: ModelState) -> bool:
        return model.name in self._models

    def __iter__(self) -> Iterator[ModelState]:
        return iter(list(self._models.values()))

    def add(self, model: ModelState) -> None:
        """Add a model that is not being loaded."""
        self._models.setdefault(model.name, model)

    def discard(self, model: ModelState) -> None:
        """Forget a model."""
        self._models.pop(model.name, None)

    def loaded(self, model: ModelState, now: float) -> None:
        """Note that all of a model is in memory."""
        self.discard(model)
        self._loaded_at[model.name] = now

    def pays(self, wanted: ModelState, victims: Sequence[Victim], models: Mapping[str, ModelState], now: float) -> bool:
        """Return whether these victims should be evicted for a model that no request waits for."""
        evicted = [(models[victim.model], victim) for victim in victims]
        for model, _ in evicted:
            loaded_at = self._loaded_at.get(model.name)
            if loaded_at is not None and now - loaded_at < STAYS * model.footprint.penalty:
                return False
        if self._policy is None:
            return True
        loss = sum([self._policy.worth(model, now) * _lost_bytes(model, victim) for model, victim in evicted])
        return self._policy.gain(wanted, now) * wanted.stage_bytes > MARGIN * loss


def _lost_bytes(model: ModelState, victim: Victim) -> int:
    """Return the bytes that are of no use after an eviction.

    Without one of its stages that is all of a model, because deadlines leave no time to load a stage again.
    """
    loses_stage = victim.part is not None or min(victim.pieces) < model.footprint.stages
    return model.bytes if loses_stage else model.size_of(victim.pieces)


class LoadPlanner:
    """Starts loads, after it has made room: it evicts what `policy` chooses.

    Where models are loaded `whole`, one load has all that is missing. One load is under way at a time: for started
    requests, then for waiting ones, then for refused ones.
    """

    def __init__(self, config: ResidencyConfig, state: ResidencyState, policy: EvictionPolicy, *, whole: bool) -> None:
        self._config = config
        self._state = state
        self._policy = policy
        self.refused = RefusedModels(policy)
        self.missing_caches = MissingCaches(config.back_off)
        self.back_off = BackOff(config.back_off)
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
            if self.back_off.is_on(model.name, now) and state.is_resident(batch):
                continue
            if any(piece >= batch.stage for piece in model.missing):
                return model
        waiting = state.waiting
        if all(model.complete for model in waiting.values()):
            return None
        return self._next_waited_for(now)

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
        if need > 0 and not self._make_room(model, pieces, need + own, now, actions):
            state.draining = self._has_waited(model, self._overdue_after(), now)
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
        for model in self.refused:
            fits = model.stage_bytes <= state.memory.budget
            wanted, pays = model.missing if fits else self._next_pieces(model), partial(self._pays, model, now)
            need = model.missing_bytes(wanted) - state.memory.free
            if need > 0 and not self._make_room_if(model, need, pays, now, actions):
                self.refused.discard(model)
                continue
            state.set_target(model)
            self._start(model, self._next_pieces(model), now, actions)
            return True
        return False

    def _next_waited_for(self, now: float) -> ModelState:
        """Return the model to load, of those that requests wait for; at least one must not be complete.

        Overdue models go first, then the one whose requests have waited longest, in sum, per second of loading.
        """
        waiting = self._state.waiting
        incomplete = [model for model in waiting.values() if not model.complete]
        limit = self._overdue_after()
        overdue = [model for model in incomplete if self._has_waited(model, limit, now)]
        if overdue:
            return min(overdue, key=self._state.oldest)
        return max(incomplete, key=lambda model: self._urgency(model, now))

    def _overdue_after(self) -> float:
        """Return the seconds of waiting after which a model is overdue: loads that go first count against patience."""
        ahead = sum([model.load_seconds for model in self._state.waiting.values()])
        return max(self._config.patience - ahead, 0.25 * self._config.patience)

    def _has_waited(self, model: ModelState, seconds: float, now: float) -> bool:
        return model.waiting > 0 and now - self._state.lanes[model.name].oldest.arrived >= seconds

    def _urgency(self, model: ModelState, now: float) -> tuple[float, float]:
        """Return the summed waiting time of its requests per second of loading, then their number per second."""
        seconds = max(model.load_seconds, 1e-9)
        return self._state.lanes[model.name].waited(now) / seconds, model.waiting / seconds

    def _load_unasked(self, now: float, actions: list[Action]) -> None:
        """Load what no request waits for: models that requests were refused for, then learned caches."""
        state = self._state
        # The request that had waited too long has gone.
        if state.draining and all(model.complete for model in state.waiting.values()):
            state.draining = False
            state.dirty.update(state.waiting)
        if not self.load_refused(now, actions) and state.target is None:
            found = self.missing_caches.next(state.memory.free, now)
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
        return self.refused.pays(wanted, victims, self._state.memory.models, now)

    # Evictions ------------------------------------------------------------------------------------------------------

    def _make_room(
        self, model: ModelState, pieces: tuple[int, ...], need: int, now: float, actions: list[Action]
    ) -> bool:
        """Evict `need` bytes so that `pieces` of `model` can be loaded next; return whether that made enough room.

        Where nothing can progress, other models that requests wait for may be evicted too.
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
            victims = self._victims(need + model.resident_bytes(pieces[0]), model, now)
        self._evict(victims, now, actions)
        state.dirty.update(state.waiting)
        return bool(victims)

    def restore_budget(self, now: float, actions: list[Action]) -> None:
        """Evict what exceeds the budget, where a piece turned out larger than it was thought to be."""
        memory = self._state.memory
        if memory.free < 0:
            first = next(iter(memory.models.values()))
            self._evict(self._victims(-memory.free, first, now), now, actions)

    def _make_room_if(
        self, model: ModelState, need: int, pays: Callable[[Sequence[Victim]], bool], now: float, actions: list[Action]
    ) -> bool:
        """Evict `need` bytes of other models for one that no request waits for, if `pays` approves of the victims.

        Returns whether that made enough room.
        """
        state = self._state
        state.pin(model, True)  # the pieces of it that are in memory already
        victims = self._victims(need, model, now)
        state.pin(model, state.must_pin(model))
        if not victims or not pays(victims):
            return False
        self._evict(victims, now, actions)
        return True

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
        state = self._state
        for victim in victims:
            model = state.memory.evict(victim)
            if model.absent:
                self._policy.evicted(model, now)
            self.missing_caches.update(model)
            state.dirty.add(model.name)
            actions.append(Evict(victim.model, victim.pieces, victim.part))
