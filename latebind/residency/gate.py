"""Decides which models' requests may start: those whose stages are in memory, or will be in time. Pure.

Requests of a model that cannot run yet are held in its lane, where no batching policy sees them. The lane opens as soon
as a request that starts would not wait for a stage: a start that is held back until then does not end later, and more
requests start together. A model that does not fit as a whole opens once its first stage is there, and streams through.
All lanes are closed while the requests that have started keep more between stages than they may.
"""

from math import inf

from latebind.batching.admission import Lane
from latebind.domain.config import ResidencyConfig
from latebind.residency.model_state import ModelState
from latebind.residency.state import ResidencyState


class Gate:
    """Opens and closes lanes. Where models are loaded `whole`, a lane opens only once all of its model is there."""

    def __init__(self, config: ResidencyConfig, state: ResidencyState, *, whole: bool) -> None:
        self._config = config
        self._state = state
        self._whole = whole
        for lane in state.lanes.values():
            lane.open = False

    def update(self) -> None:
        """Refresh all dirty models, and open or close their lanes."""
        state = self._state
        every = not self._config.beside or state.draining or self._config.resting > 0
        names = set(state.waiting) if every else set()
        for name in state.dirty | names:
            model = state.refresh(name)
            if self._config.order != "fifo":
                self._open_or_close(model, state.lanes[name])
        state.dirty.clear()

    def release_head(self) -> None:
        """In the order "fifo", let the oldest requests start, those of one model, once nothing else has started."""
        state = self._state
        if self._config.order != "fifo" or not state.waiting or state.busy():
            return
        heads = sorted((state.lanes[name].oldest.id, name) for name in state.waiting)
        (_, name), *others = heads
        if state.memory.models[name].complete:
            state.lanes[name].release(others[0][0] if others else inf)
            state.dirty.add(name)

    def _open_or_close(self, model: ModelState, lane: Lane) -> None:
        if self._may_open(model, lane):
            lane.open = True
            if lane.held:
                lane.release()
        elif lane.open:
            lane.withhold()

    def _may_open(self, model: ModelState, lane: Lane) -> bool:
        state = self._state
        if self._config.resting and state.resting_bytes() > self._config.resting:
            return False
        if state.draining and not state.is_guarded(model):
            return False
        if not self._config.beside and state.is_loading and model.name not in state.streaming:
            return False
        if model.complete:
            return True
        if self._whole or model is not state.target or 0 not in model.resident:
            return False
        return model.name in state.streaming or (self._config.beside and _loads_in_time(model, lane))


def _loads_in_time(model: ModelState, lane: Lane) -> bool:
    """Return whether requests that start now would wait for no stage longer than the next piece takes to load."""
    footprint, batch = model.footprint, max(1, min(len(lane), lane.spec.max_batch))
    loaded_at, runs_at = 0.0, model.seconds_of(model.missing[:1])
    for stage in range(footprint.stages):
        if stage not in model.resident:
            loaded_at += model.seconds_of((stage,))
            if loaded_at > runs_at:
                return False
        runs_at += lane.estimate.unit(batch, stage)
    return True
