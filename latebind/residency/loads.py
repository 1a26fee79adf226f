"""Decides what is loaded next: for those who have begun, for those who wait, then for those who were refused. Pure.

One load is under way at a time.
"""

from collections.abc import Sequence
from functools import partial
from math import inf

from latebind.domain.actions import Action, Load
from latebind.domain.config import ResidencyConfig
from latebind.residency.base import Victim
from latebind.residency.caches import Caches
from latebind.residency.held import Held
from latebind.residency.room import Room
from latebind.residency.standing import Standing
from latebind.residency.turns import Turns
from latebind.residency.wishes import Wishes


class Loads:
    """What comes to memory. Where models come `whole`, all that is missing of one is one load."""

    def __init__(
        self,
        config: ResidencyConfig,
        standing: Standing,
        room: Room,
        turns: Turns,
        wishes: Wishes,
        caches: Caches,
        *,
        whole: bool,
    ) -> None:
        self._config = config
        self._standing = standing
        self._room = room
        self._turns = turns
        self._wishes = wishes
        self._caches = caches
        self._whole = whole
        self._ends = 0.0  # when what is on its way is expected

    def seconds_left(self, now: float) -> float:
        """Return the seconds until what is on its way is expected."""
        return max(0.0, self._ends - now) if self._standing.is_loading else 0.0

    def next(self, now: float) -> Held | None:
        """Return the model to load: one that has begun without all of it, whoever waited too long, the most urgent."""
        standing = self._standing
        for batch in standing.begun():
            model = standing.memory.models[batch.spec.name]
            if any(piece >= batch.stage for piece in model.missing):
                return model
        waiting = standing.waiting
        if all(model.complete for model in waiting.values()) or (not self._config.beside and standing.busy()):
            return None
        if self._config.order == "fifo":
            first = min(waiting.values(), key=self._turns.oldest)
            return None if first.complete or standing.busy() else first
        return self._turns.next(waiting, now)

    def load(self, now: float, actions: list[Action]) -> None:
        """Have the next pieces of whoever is to be loaded first come, if there is room or can be made."""
        standing, model = self._standing, self.next(now)
        if model is None:
            self._load_for_nobody(now, actions)
            return
        begins, pieces = standing.aim_at(model), self._pieces(model)
        if begins and not self._whole and self._streams_through(model):
            standing.streams.add(model.name)
        # Room for all of it is made at once: a piece at a time, over a long load, each idle model would lose its last.
        wanted = pieces if model.name in standing.streams else model.missing
        need = model.lacking(wanted) - standing.memory.free
        own = sum([model.there(piece) for piece in pieces if piece < model.needed < inf])  # may go for itself
        if need > 0 and not self._room.make(model, pieces, need + own, now, actions):
            standing.drains = self._turns.is_overdue(model, standing.waiting, now)
            return
        standing.drains = False
        self._begin(model, pieces, begins, now, actions)

    def grant(self, now: float, actions: list[Action]) -> bool:
        """Where nobody waits for a load, have more come of a model that requests were refused for want of.

        That is the first for which there is room, or whose worth is more than that of what goes; others are forgotten.
        """
        standing = self._standing
        if not self._config.beside and standing.busy():
            return False
        for model in self._wishes:
            need, pays = model.lacking(model.missing) - standing.memory.free, partial(self._pays, model, now)
            if need > 0 and not self._room.make_if(model, need, pays, now, actions):
                self._wishes.discard(model)
                continue
            self._begin(model, self._pieces(model), standing.aim_at(model), now, actions)
            return True
        return False

    def _load_for_nobody(self, now: float, actions: list[Action]) -> None:
        """Have come what nobody waits for: for those who were refused, then learned caches."""
        standing = self._standing
        if standing.drains and all(one.complete for one in standing.waiting.values()):  # who waited too long has gone
            standing.drains = False
            standing.touched.update(standing.waiting)
        if not self.grant(now, actions) and standing.target is None:
            cache = self._caches.next(standing.memory.free)
            if cache is not None:
                self._begin(cache[0], (cache[1],), standing.aim_at(cache[0]), now, actions)

    def _begin(self, model: Held, pieces: tuple[int, ...], begins: bool, now: float, actions: list[Action]) -> None:
        begins = begins and model.absent
        there = tuple([model.there(piece) for piece in pieces]) if model.parts else ()
        self._ends = now + (model.seconds_of(pieces) + model.footprint.fixed * begins)
        self._standing.memory.begin(model.name, pieces)
        actions.append(Load(model.name, pieces, begins, there))
        self._standing.touched.add(model.name)

    def _pieces(self, model: Held) -> tuple[int, ...]:
        """Return the next pieces of a model: all that are missing, or the first that those want who have begun."""
        ahead = tuple([piece for piece in model.missing if model.needed <= piece < inf]) or model.missing
        return model.missing if self._whole else ahead[:1]

    def _streams_through(self, model: Held) -> bool:
        """Tell whether a model is not to wait until all of it has a place: it never has, or nobody else wants any.

        In that case the policy says, piece by piece, whether others make room or the pieces that have run.
        """
        alone = all(other is model for other in self._standing.waiting.values())
        return alone or model.size_of(tuple(range(model.footprint.stages))) > self._standing.memory.budget

    def _pays(self, wanted: Held, now: float, victims: Sequence[Victim]) -> bool:
        return self._wishes.pays(wanted, victims, self._standing.memory.models, now)
