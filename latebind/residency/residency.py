"""The part of the scheduler that decides what is in memory: its events, its questions, and `decide`. Pure.

`state.py` has what is known and which requests may start, `loading.py` decides what is loaded and evicted.
"""

from collections.abc import Iterable, Mapping, Sequence

from latebind.batching.admission import Lane
from latebind.batching.policy import Models
from latebind.batching.table import SubBatch
from latebind.batching.workers import Crew
from latebind.domain.actions import Action
from latebind.domain.config import ResidencyConfig, ServedModel
from latebind.domain.events import Loaded, LoadFailed
from latebind.residency.importance import ByImportance
from latebind.residency.loading import LoadPlanner
from latebind.residency.memory import Memory, require_room
from latebind.residency.model_state import ModelState
from latebind.residency.policy import make_policy
from latebind.residency.state import Gate, ResidencyState


class Residency:
    """The memory that all models share. Raises `ConfigError` where a model can never be in it."""

    def __init__(
        self,
        config: ResidencyConfig,
        models: Iterable[ServedModel],
        lanes: Mapping[str, Lane],
        queues: Models,
        crew: Crew,
    ) -> None:
        policy = make_policy(config)
        whole = policy.whole or not config.stages
        self.memory = Memory(config.budget, {served.spec.name: served.footprint for served in models})
        for model in self.memory.models.values():
            require_room(model, config.budget, whole=whole)
        self._policy = policy
        self._streams = not whole  # a model may start before all of it is in memory
        self._state = ResidencyState(self.memory, lanes, queues, crew)
        self._gate = Gate(config, self._state, whole=whole)
        self._planner = LoadPlanner(config, self._state, policy, whole=whole)

    # Events ---------------------------------------------------------------------------------------------------------

    def arrived(self, name: str, requests: Sequence[int], now: float) -> None:
        """Note that requests have been accepted."""
        self._state.arrived(name, requests)
        model = self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)

    def touch(self, name: str) -> None:
        """Note that a request of this model started, continued or ended."""
        self._state.dirty.add(name)

    def loaded(self, event: Loaded, now: float) -> None:
        """Note that pieces have been loaded."""
        expected = self.memory.models[event.model].seconds_of(event.pieces)
        model = self.memory.loaded(event.model, event.pieces, event.sizes)
        model.learn(event.pieces, event.seconds, expected)
        self._planner.back_off.loaded(model.name)
        self._policy.loaded(model, now)
        self._planner.missing_caches.loaded(model, event.pieces)
        self._state.loaded(model)
        if model.complete:
            self._planner.refused.loaded(model, now)

    def failed(self, event: LoadFailed, now: float) -> None:
        """Note that pieces could not be loaded. What is in memory of the model may be evicted once nobody uses it."""
        model = self.memory.failed(event.model, event.pieces)
        self._planner.missing_caches.failed(model, event.pieces, now)
        if not model.complete:  # else only a learned cache, without which the model serves
            self._planner.back_off.failed(model.name, now)
        self._state.failed(model)
        self._planner.refused.discard(model)

    def load_for_refused(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Note requests that are refused only because their model is not in memory; load it where that pays.

        Returns the seconds until the model is expected, or None where it is not going to be loaded. Of a model that
        is larger than the memory as much is loaded as fits: later requests wait for the rest alone. None is told then,
        for nobody knows whether that is soon enough.
        """
        state, model = self._state, self.memory.models[name]
        for _ in requests:
            self._policy.requested(model, now)
        self._gate.update()
        if not model.waiting and not model.loading:
            self._planner.refused.add(model)
            if not state.is_loading and self._planner.next_model(now) is None:
                self._planner.load_refused(now, actions)
        wished = model.waiting or model.loading or model in self._planner.refused
        if not wished or model.stage_bytes > self.memory.budget:
            return None
        others = [] if model.loading else [other for other in state.waiting.values() if other is not model]
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
            return under_way + (model.wait_seconds if self._streams else model.load_seconds)
        return under_way + model.seconds_of(model.missing)

    @property
    def loading_model(self) -> str | None:
        """The name of the model that is being loaded."""
        target = self._state.target
        return target.name if target is not None and target.loading else None

    def is_resident(self, batch: SubBatch) -> bool:
        """Return whether the next stage of a sub-batch is in memory."""
        return self._state.is_resident(batch)

    def worths(self, now: float) -> dict[str, tuple[ModelState, float | None]]:
        """Return every model, and what a byte of it is worth where the policy goes by importance (else None)."""
        policy = self._policy if isinstance(self._policy, ByImportance) else None
        return {
            name: (model, policy.worth(model, now) if policy is not None else None)
            for name, model in self.memory.models.items()
        }

    def decide(self, now: float) -> list[Action]:
        """Open and close lanes, and return the evictions and the load to perform, in this order."""
        state, actions = self._state, list[Action]()
        self._gate.update()
        self._planner.restore_budget(now, actions)
        for _ in range(2):  # the second time only where no request is left whose end could make room
            if not state.is_loading:
                self._planner.load(now, actions)
            self._gate.update()
            if state.can_progress():
                break
        return actions

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._state.check()
