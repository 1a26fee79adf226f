"""Small memories that tests of residency share: models of a few pieces, asked for and loaded as a server would."""

from collections.abc import Iterable

from latebind.domain.costs import Footprint
from latebind.residency.memory import Memory, ModelState
from latebind.residency.policy import EvictionPolicy


def sized(size: int = 1, *, stages: int = 1, seconds: float | None = None, fixed: float = 0.0) -> Footprint:
    """A model of `size` bytes a stage, which take as many seconds to load unless said otherwise."""
    return Footprint((size,) * stages, (float(size) if seconds is None else seconds,) * stages, fixed=fixed)


def load(memory: Memory, policy: EvictionPolicy, name: str, now: float, *, stages: int | None = None) -> ModelState:
    """Load what is missing of a model, of its first `stages` where given."""
    pieces = memory.models[name].missing[:stages]
    memory.begin(name, pieces)
    model = memory.loaded(name, pieces)
    policy.loaded(model, now)
    return model


def evict(memory: Memory, policy: EvictionPolicy, need: int, wanted: str, now: float) -> list[str]:
    """Let go what the policy names; returns the models in that order."""
    victims = policy.victims(memory.view(), need, memory.models[wanted], now)
    for victim in victims:
        model = memory.evict(victim)
        if not model.resident:
            policy.evicted(model, now)
    return [victim.model for victim in victims]


def serve(memory: Memory, policy: EvictionPolicy, names: Iterable[str]) -> tuple[int, list[str]]:
    """Serve requests that come a second apart, whole models at a time; returns the loads, and who was evicted."""
    loads, gone = 0, list[str]()
    for now, name in enumerate(names):
        model = memory.models[name]
        policy.requested(model, float(now))
        if not model.complete:
            loads += 1
            need = model.footprint.size - memory.free
            gone += evict(memory, policy, need, name, float(now)) if need > 0 else []
            load(memory, policy, name, float(now))
        memory.check()
    return loads, gone
