"""What decisions about memory share: which models requests wait for, what is loading and pinned, who may start. Pure.

Events change it as they come. `refresh` brings a model up to date before anything is decided about it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from latebind.batching.requests import Lane, Models
from latebind.batching.workers import SubBatch, Worker
from latebind.domain.config import ResidencyConfig
from latebind.residency.memory import Memory, ModelState


class ResidencyState:
    """Read by everything that decides about memory; changed only by that and by `Residency`, which adds decisions.

    `waiting` are the models that requests wait for. `dirty` are the models for which a request arrived, started,
    continued or ended since they were last refreshed. `target` is the model that is being loaded, until it is complete.
    `streaming` are the models that run piece by piece because not all of them fits. While `draining`, no request
    starts, because a model that has been waited for too long needs room.

    Requests of a model that cannot run yet are held in its lane, where no batching policy sees them. The lane opens as
    soon as a request that starts would not wait for a stage: a start that is held back until then does not end later,
    and more requests start together. A model that does not fit as a whole opens once its first stage is there, and
    streams through; if models are loaded `whole`, once all of it is. All lanes are closed while the requests that have
    started keep more between stages than they may.
    """

    def __init__(
        self,
        config: ResidencyConfig,
        memory: Memory,
        lanes: Mapping[str, Lane],
        models: Models,
        workers: Sequence[Worker],
        whole: bool,
    ) -> None:
        self.config = config
        self.memory = memory
        self.lanes = lanes
        self.whole = whole
        self.waiting: dict[str, ModelState] = {}
        self.dirty: set[str] = set()
        self.target: ModelState | None = None
        self.streaming: set[str] = set()
        self.draining = False
        self._queues = models
        self._workers = workers
        self._newest = -1  # the request that arrived last
        # For each model that was loaded, the last request that had arrived by then. The model stays until all requests
        # for it up to that one have started.
        self._guards: dict[str, int] = {}
        for lane in lanes.values():
            lane.open = False

    # Events ---------------------------------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """Note that a request of this model started, continued or ended."""
        self.dirty.add(name)

    def note_arrived(self, name: str, requests: Sequence[int]) -> None:
        """Note that requests have been accepted."""
        self._newest = max(self._newest, *requests)
        self.dirty.add(name)

    def note_loaded(self, model: ModelState) -> None:
        """Note that pieces have been loaded."""
        self._guards[model.name] = self._newest
        if model.complete:
            self.end_target(model)
        self.dirty.add(model.name)

    def end_target(self, model: ModelState) -> None:
        """Note that a model is complete, or that a load of it has failed."""
        self.target = None
        self.streaming.discard(model.name)
        self.dirty.add(model.name)

    def set_target(self, model: ModelState) -> bool:
        """Make a model the one that is being loaded; return whether that is a change."""
        changes = model is not self.target
        if changes and self.target is not None:
            self.dirty.add(self.target.name)
        self.target = model
        return changes

    def pin(self, model: ModelState, pinned: bool) -> None:
        """Pin a model as a whole, or let everything be evicted that no started request needs."""
        model.pinned = pinned
        self.memory.update_evictable(model)

    def update_lanes(self) -> None:
        """Refresh all dirty models, and open or close their lanes."""
        every = self.draining or self.config.resting > 0
        for name in self.dirty | (set(self.waiting) if every else set()):
            model, lane = self._refresh(name), self.lanes[name]
            if self._may_open(model, lane):
                if lane.held or not lane.open:
                    lane.release()
            elif lane.open:
                lane.withhold()
        self.dirty.clear()

    def _refresh(self, name: str) -> ModelState:
        """Update how many requests wait for a model, which of its pieces are needed and whether it is pinned."""
        model, lane = self.memory.models[name], self.lanes[name]
        model.waiting = len(lane)
        if model.waiting:
            self.waiting[name] = model
        else:
            self.waiting.pop(name, None)
        model.needed_from = min([batch.stage for batch in self.started() if batch.spec is lane.spec], default=inf)
        self.pin(model, self.must_pin(model))
        return model

    def _may_open(self, model: ModelState, lane: Lane) -> bool:
        if self.config.resting and self._resting_bytes() > self.config.resting:
            return False
        if self.draining and not self.is_guarded(model):
            return False
        if model.complete:
            return True
        if self.whole or model is not self.target or 0 not in model.resident:
            return False
        return model.name in self.streaming or _loads_in_time(model, lane)

    # Questions ------------------------------------------------------------------------------------------------------

    def must_pin(self, model: ModelState) -> bool:
        """Return whether nothing of a model may be evicted, because requests that have not started wait for it."""
        if model.name in self.streaming and model.needed_from < inf:
            return False
        return model.waiting > 0 and (not self.draining or model is self.target or self.is_guarded(model))

    def is_guarded(self, model: ModelState) -> bool:
        """Return whether a request that waited when the model was loaded still waits."""
        lane = self.lanes[model.name]
        return len(lane) > 0 and model.complete and lane.oldest.id <= self._guards.get(model.name, -1)

    def oldest(self, model: ModelState) -> int:
        """Return the id of the request that has waited longest for a model."""
        return self.lanes[model.name].oldest.id

    @property
    def is_loading(self) -> bool:
        """Whether a load is under way."""
        return self.target is not None and bool(self.target.loading)

    def started(self) -> Iterable[SubBatch]:
        """Return the sub-batches that have started and not ended."""
        return (batch for worker in self._workers for batch in worker.begun)

    def _resting_bytes(self) -> int:
        """Return the most bytes that the requests that have started keep between stages."""
        models = self.memory.models
        return sum([len(batch.members) * models[batch.spec.name].footprint.row for batch in self.started()])

    def can_progress(self) -> bool:
        """Return whether a worker runs something, or could without waiting for memory."""
        runs = any(worker.running is not None or worker.table.entries for worker in self._workers)
        return runs or self._queues.requests > 0

    def is_resident(self, batch: SubBatch) -> bool:
        """Return whether the next stage of a sub-batch is in memory."""
        return batch.stage in self.memory.models[batch.spec.name].resident

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        self.memory.check()
        for worker in self._workers:
            for entry in worker.table.entries:
                assert self.is_resident(entry), f"stage {entry.stage} of {entry.spec.name} may run and is not in memory"
            assert worker.running or not any(map(self.is_resident, worker.aside)), "a batch that could run is set aside"
        loading = any(model.loading for model in self.memory.models.values())
        goes_on = loading or self.can_progress() or not any(lane.held for lane in self.lanes.values())
        assert goes_on, "requests wait for a model and nothing is loaded for them"


def _loads_in_time(model: ModelState, lane: Lane) -> bool:
    """Return whether requests that start now would wait for no stage longer than the next piece takes to load."""
    footprint, batch = model.footprint, max(1, min(len(lane), lane.spec.max_batch))
    loaded_at, runs_at = 0.0, model.seconds_of(model.missing[:1])
    for stage in range(footprint.stages):
        if stage not in model.resident:
            loaded_at += footprint.seconds[stage]
            if loaded_at > runs_at:
                return False
        runs_at += lane.estimate.unit(batch, stage, lane.usual)
    return True
