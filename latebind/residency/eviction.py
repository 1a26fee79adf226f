"""Makes room in memory: asks the policy for victims, and evicts them. Pure.

Models that requests wait for are offered to the policy only where nothing else can progress.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from latebind.domain.actions import Action, Evict
from latebind.residency.base import EvictionPolicy, Victim
from latebind.residency.load_order import LoadOrder
from latebind.residency.missing_caches import MissingCaches
from latebind.residency.model_state import ModelState
from latebind.residency.state import ResidencyState


class Evictor:
    """Evicts what `policy` chooses, and appends the `Evict` actions."""

    def __init__(
        self, state: ResidencyState, policy: EvictionPolicy, order: LoadOrder, missing_caches: MissingCaches
    ) -> None:
        self._state = state
        self._policy = policy
        self._order = order
        self._missing_caches = missing_caches

    def make_room(
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

    def make_room_if(
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
        first = min(map(self._order.oldest, waiting), default=0)
        for other in waiting:
            other.queue_position = self._order.oldest(other) - first
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
            self._missing_caches.update(model)
            state.dirty.add(model.name)
            actions.append(Evict(victim.model, victim.pieces, victim.part))
