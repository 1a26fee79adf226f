"""Decides whose requests may begin: of a model that is there, or comes in time. Pure.

Requests of a model that cannot begin are held in its lane, where no batching policy sees them. A model opens as soon as
whoever begins would not wait for a stage: a start held back so long ends no later, and more begin together. What does
not fit as a whole opens at its first stage and streams through.
"""

from math import inf

from latebind.batching.lane import Lane
from latebind.domain.config import ResidencyConfig
from latebind.residency.held import Held
from latebind.residency.opening import arrives_in_time
from latebind.residency.standing import Standing


class Doors:
    """Opens and closes lanes. Where models come `whole`, none opens before all of it is there."""

    def __init__(self, config: ResidencyConfig, standing: Standing, *, whole: bool) -> None:
        self._config = config
        self._standing = standing
        self._whole = whole
        for lane in standing.lanes.values():
            lane.open = False

    def settle(self) -> None:
        """Bring up to date what is known of models since somebody came, began, went on or ended, and their lanes."""
        standing = self._standing
        names = set(standing.waiting) if not self._config.beside or standing.drains else set()
        for name in standing.touched | names:
            model = standing.settle(name)
            if self._config.order != "fifo":
                self._open(model, standing.lanes[name])
        standing.touched.clear()

    def release_head(self) -> None:
        """Of all in the order in which they came, let those of one model begin once nothing else has begun."""
        standing = self._standing
        if self._config.order != "fifo" or not standing.waiting or standing.busy():
            return
        heads = sorted((lane.oldest.id, name) for name in standing.waiting for lane in (standing.lanes[name],))
        (_, name), *others = heads
        if standing.memory.models[name].complete:
            standing.lanes[name].release(others[0][0] if others else inf)
            standing.touched.add(name)

    def _open(self, model: Held, lane: Lane) -> None:
        opens = self._opens(model, lane)
        if opens:
            lane.open = True
            if lane.held:
                lane.release()
        elif lane.open:
            lane.withhold()

    def _opens(self, model: Held, lane: Lane) -> bool:
        standing = self._standing
        if standing.drains and not standing.is_guarded(model):
            return False
        if not self._config.beside and standing.is_loading and model.name not in standing.streams:
            return False
        if model.complete:
            return True
        if self._whole or model is not standing.target or 0 not in model.resident:
            return False
        return model.name in standing.streams or (self._config.beside and arrives_in_time(model, lane))
