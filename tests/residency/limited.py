"""Simulations with less memory than models need, and an account of that memory apart from that of the scheduler."""

from collections import Counter
from dataclasses import replace
from typing import Any

from latebind.domain.actions import Evict, Load, Run
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Footprint
from latebind.domain.events import Event, Loaded, LoadFailed
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from research.policies import BATCHING


def with_pieces(model: ServedModel, sizes: tuple[int, ...], *, seconds: float = 1.0, fixed: float = 0.0) -> ServedModel:
    """Return the model with stages of these bytes, each of which takes `seconds` a byte to load."""
    assert len(sizes) == model.spec.stages
    each = tuple(size * seconds for size in sizes)
    return replace(model, footprint=Footprint(sizes, each, fixed=fixed))


def limited(
    *models: ServedModel,
    budget: int,
    policy: str = "late",
    batching: str = "late",
    max_batch: int = 0,
    workers: int = 1,
    **settings: Any,
) -> SchedulerConfig:
    """Return the configuration of a scheduler that sheds nobody and has so much memory."""
    residency = ResidencyConfig(budget, policy, **settings)
    return SchedulerConfig(
        models, workers, PolicyConfig(BATCHING[batching], max_batch, shed=False), residency=residency
    )


class Accounted(Simulator):
    """Adds up what lies in memory from the actions alone, and holds the scheduler to its invariants at every event.

    The loads numbered in `fails` come to nothing.
    """

    def __init__(self, settings: SchedulerConfig, *, fails: frozenset[int] = frozenset()) -> None:
        super().__init__(settings)
        self._sizes = {served.spec.name: served.footprint.sizes for served in settings.models}
        self._fails = fails
        self.lies: dict[str, set[int]] = {name: set() for name in self._sizes}
        self.coming: dict[str, set[int]] = {name: set() for name in self._sizes}
        self.loads: list[Load] = []
        self.evicted: list[Evict] = []
        self.told: list[Load | Evict] = []
        self.ran: list[Run] = []
        self.loaded: Counter[tuple[str, int]] = Counter()
        self.most = 0

    @property
    def bytes(self) -> int:
        return sum(
            self._sizes[name][piece] for held in (self.lies, self.coming) for name in held for piece in held[name]
        )

    def _deliver(self, event: Event, now: float) -> None:
        if isinstance(event, Loaded):
            self.coming[event.model] -= set(event.pieces)
            if len(self.loads) - 1 in self._fails:
                event = LoadFailed(event.model, event.pieces)
            else:
                self.lies[event.model] |= set(event.pieces)
                self.loaded.update((event.model, piece) for piece in event.pieces)
        super()._deliver(event, now)
        self.scheduler.check()

    def _load(self, action: Load, now: float) -> None:
        assert not any(self.coming.values()), "two loads are under way"
        assert not set(action.pieces) & self.lies[action.model]
        self.coming[action.model] |= set(action.pieces)
        self.loads.append(action)
        self.told.append(action)
        self.most = max(self.most, self.bytes)
        super()._load(action, now)

    def _evict(self, action: Evict) -> None:
        assert set(action.pieces) <= self.lies[action.model]
        self.lies[action.model] -= set(action.pieces)
        self.evicted.append(action)
        self.told.append(action)

    def _run(self, action: Run, now: float) -> None:
        assert action.stage in self.lies[action.model], "a stage runs that is not there"
        self.ran.append(action)
        super()._run(action, now)


def asks(*wanted: tuple[float, str], stages: int = 2, allowed: float = 1e9) -> list[Arrival]:
    """Return requests for models at these times."""
    return [Arrival(time, name, allowed, stages - 1) for time, name in wanted]
