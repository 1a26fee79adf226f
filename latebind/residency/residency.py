"""The part of the scheduler that decides what is in memory: its events, its questions, and `decide`. Pure.

`state.py` has what is known and which requests may start, `loading.py` decides what is loaded and evicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from latebind.batching.requests import Lane, Models
from latebind.batching.workers import Worker
from latebind.domain.actions import Action
from latebind.domain.config import ResidencyConfig, ServedModel
from latebind.domain.events import Loaded, LoadFailed
from latebind.residency.importance import ByImportance
from latebind.residency.loading import LoadPlanner
from latebind.residency.memory import Memory, ModelState, require_room
from latebind.residency.policy import make_policy
from latebind.residency.state import ResidencyState


class Residency(ResidencyState):
    """The memory that all models share. Raises `DoesNotFit` if a model can never be in it."""

    def __init__(
        self,
        config: ResidencyConfig,
        models: Iterable[ServedModel],
        lanes: Mapping[str, Lane],
        queues: Models,
        workers: Sequence[Worker],
    ) -> None:
        self._policy = make_policy(config)
        memory = Memory(config.budget, {served.spec.name: served.footprint for served in models})
        super().__init__(config, memory, lanes, queues, workers, whole=self._policy.whole or not config.stages)
        for model in memory.models.values():
            require_room(model, config.budget, whole=self.whole)
        self._planner = LoadPlanner(self, self._policy)
        self._used: dict[str, float] = {}  # when models that take memory were last used, the longest ago first

    # Events ---------------------------------------------------------------------------------------------------------

    def arrived(self, name: str, requests: Sequence[int], now: float) -> None:
        """Note that requests have been accepted."""
        self.note_arrived(name, requests)
        for _ in requests:
            self._policy.requested(self.memory.models[name], now)

    def loaded(self, event: Loaded, now: float) -> None:
        """Note that pieces have been loaded."""
        expected = self.memory.models[event.model].seconds_of(event.pieces)
        model = self.memory.loaded(event.model, event.pieces, event.sizes)
        model.learn(event.pieces, event.seconds, expected)
        self._policy.loaded(model, now)
        self._planner.loaded(model, event.pieces, now)
        self.note_loaded(model)

    def failed(self, event: LoadFailed, now: float) -> None:
        """Note that pieces could not be loaded. What is in memory of the model may be evicted once it is unused."""
        model = self.memory.failed(event.model, event.pieces)
        self._planner.failed(model, event.pieces, now)
        self.end_target(model)

    def load_for_refused(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Note requests that are refused only because their model is not in memory; load it if that pays.

        Returns the seconds until the model is expected, or None if it is not going to be loaded. Of a model that is
        larger than the memory, as much is loaded as fits, so that later requests wait only for the rest; returns None
        then, because it is not known whether that is soon enough.
        """
        planner, model = self._planner, self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)
        self.update_lanes()
        if not model.waiting and not model.loading:
            planner.refused.setdefault(name, model)
            if not self.is_loading and planner.next_model(now) is None:
                planner.load_refused(now, actions)
        wished = model.waiting or model.loading or name in planner.refused
        if not wished or model.stage_bytes > self.memory.budget:
            return None
        others = [] if model.loading else [other for other in self.waiting.values() if other is not model]
        return self.seconds_to(name, now) + sum([other.load_seconds for other in others if not other.loading])

    # Questions ------------------------------------------------------------------------------------------------------

    def is_backing_off(self, name: str, now: float) -> bool:
        """Return whether a load of the model has failed, and it is too early for the next attempt."""
        return self._planner.back_off.is_on(name, now) and not self.memory.models[name].complete

    def load_seconds(self, name: str) -> float:
        """Return the seconds that a model takes to load, if that began now."""
        return self.memory.models[name].load_seconds

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may start, if it is loaded right after the load that is under way."""
        model = self.memory.models[name]
        if model.complete:
            return 0.0
        under_way = self._planner.seconds_left(now)
        if not model.loading:
            return under_way + (model.load_seconds if self.whole else model.wait_seconds)
        return under_way + model.seconds_of(model.missing)

    @property
    def loading_model(self) -> str | None:
        """The name of the model that is being loaded."""
        target = self.target
        return target.name if target is not None and target.loading else None

    def worths(self, now: float) -> dict[str, tuple[ModelState, float | None]]:
        """Return every model, and what a byte of it is worth if the policy goes by importance (else None)."""
        policy = self._policy if isinstance(self._policy, ByImportance) else None
        return {
            name: (model, policy.worth(model, now) if policy is not None else None)
            for name, model in self.memory.models.items()
        }

    def decide(self, now: float) -> list[Action]:
        """Open and close lanes, and return the evictions and the load to perform, in this order."""
        actions: list[Action] = []
        if self.config.idle:
            self._note_used(now)
        self.update_lanes()
        self._planner.restore_budget(now, actions)
        for _ in range(2):  # the second time only where no request is left whose end could make room
            if not self.is_loading:
                self._planner.load(now, actions)
            self.update_lanes()
            if self.can_progress():
                break
        if self.config.idle:
            self._give_back(now, actions)
        return actions

    # Unused models ----------------------------------------------------------------------------------------------------

    @property
    def gives_back_at(self) -> float:
        """When the model that was used longest ago gives its memory back, if it stays unused; inf if there is none."""
        return next((used + self.config.idle for used in self._used.values()), inf)

    def _note_used(self, now: float) -> None:
        for name in self.dirty:
            self._used.pop(name, None)
            model = self.memory.models[name]
            if model.resident or model.loading or len(self.lanes[name]):
                self._used[name] = now

    def _give_back(self, now: float, actions: list[Action]) -> None:
        """Evict models that no request has used for `idle` seconds."""
        while self.gives_back_at <= now:
            name = next(iter(self._used))
            del self._used[name]
            model = self.memory.models[name]
            if model.waiting or not model.wholly_evictable:  # it is used at this moment, however long that takes
                self._used[name] = now
            elif model.resident:
                self._planner.give_back(model, now, actions)
