"""Makes room: asks the policy what is to go, and has it go. Pure.

Models that somebody waits for are offered only where nothing else goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from latebind.domain.actions import Action, Evict
from latebind.residency.base import EvictionPolicy, Victim
from latebind.residency.caches import Caches
from latebind.residency.held import Held
from latebind.residency.standing import Standing
from latebind.residency.turns import Turns


class Room:
    """What goes of the models that lie in memory, as `policy` chooses."""

    def __init__(self, standing: Standing, policy: EvictionPolicy, turns: Turns, caches: Caches) -> None:
        self._standing = standing
        self._policy = policy
        self._turns = turns
        self._caches = caches

    def make(self, model: Held, pieces: tuple[int, ...], need: int, now: float, actions: list[Action]) -> bool:
        """Let go of `need` bytes for a model that is to have `pieces` next; of others waited for where nothing goes on.

        Returns whether there is room by that.
        """
        standing = self._standing
        stuck = not standing.progresses()
        if stuck or standing.drains:
            for other in standing.waiting.values():
                kept = (other is model and model.needed == inf) or (standing.keeps(other) and not stuck)
                standing.keep(other, kept)
        victims = self._victims(need, model, now)
        if not victims and stuck and model.name in standing.streams:  # its last stages lie where the next has to
            standing.keep(model, False)
            victims = self._victims(need + model.there(pieces[0]), model, now)
        self._go(victims, now, actions)
        standing.touched.update(standing.waiting)
        return bool(victims)

    def make_good(self, now: float, actions: list[Action]) -> None:
        """Let go of what is too much, where something was found larger than it was taken to be."""
        memory = self._standing.memory
        if memory.free < 0:
            first = next(iter(memory.models.values()))
            self._go(self._victims(-memory.free, first, now), now, actions)

    def make_if(
        self, model: Held, need: int, pays: Callable[[Sequence[Victim]], bool], now: float, actions: list[Action]
    ) -> bool:
        """Let go of `need` bytes of others for a model that nobody waits for, if `pays` says so of what would go.

        Returns whether there is room by that.
        """
        standing = self._standing
        standing.keep(model, True)  # what has come of it already
        victims = self._victims(need, model, now)
        standing.keep(model, standing.keeps(model))
        if not victims or not pays(victims):
            return False
        self._go(victims, now, actions)
        return True

    def _victims(self, need: int, model: Held, now: float) -> list[Victim]:
        """Have the policy choose. Those who wait for `model` will be served by what is loaded now, and do not count."""
        waiting = list(self._standing.waiting.values())
        first = min(map(self._turns.oldest, waiting), default=0)
        for one in waiting:
            one.place = self._turns.oldest(one) - first
        kept, model.waiting, model.place = model.waiting, 0, None
        view = self._standing.memory.view(sum([one.waiting for one in waiting]))
        victims = self._policy.victims(view, need, model, now)
        model.waiting = kept
        return victims

    def _go(self, victims: Iterable[Victim], now: float, actions: list[Action]) -> None:
        standing = self._standing
        for victim in victims:
            model = standing.memory.evict(victim)
            if model.absent:
                self._policy.evicted(model, now)
            self._caches.settle(model)
            standing.touched.add(model.name)
            actions.append(Evict(victim.model, victim.pieces, victim.part))
