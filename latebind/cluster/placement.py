"""Assigns models to replicas that cannot all hold every model, by importance. Pure.

Replicas load on demand. Placement only decides where calls go, so that few replicas need each model. A model that fits
nowhere still gets one home, which loads it when a call comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A model: its `size` in bytes, the seconds of a load (`penalty`) and of one answer (`work`).

    `rate` is how many requests a second come for it.
    """

    size: int
    penalty: float
    work: float
    rate: float

    @property
    def importance(self) -> float:
        """Seconds of loading that each byte of it in memory saves in a second (mCache, equation 1)."""
        return self.rate * self.penalty / max(self.size, 1)

    @property
    def load(self) -> float:
        """How many workers its requests keep busy."""
        return self.rate * self.work


@dataclass(slots=True)
class Place:
    """A replica while it is filled: its free bytes, its load in workers, and what its memory already holds."""

    name: str
    free: int
    resident: frozenset[str] = frozenset()
    load: float = 0.0
    models: set[str] = field(default_factory=set)


def place(models: Mapping[str, ModelDemand], places: Sequence[Place]) -> dict[str, tuple[str, ...]]:
    """Return the homes of every model, the first home first. Changes `places`.

    First each model gets one home, the most important model first. Then the remaining memory is given away, one home at
    a time, to the model whose homes have the most work each, as long as a replica without that model has room for it.
    """
    homes: dict[str, list[str]] = {}
    if not places:
        return {}
    for name in sorted(models, key=lambda name: (-models[name].importance, name)):
        homes[name] = [_settle(name, models[name], places, 1).name]
    open_ = {name for name in models if models[name].rate > 0}
    while open_:
        name = max(open_, key=lambda name: (models[name].load / len(homes[name]), name))
        room = [p for p in places if name not in p.models and p.free >= models[name].size]
        if not room:
            open_.discard(name)
            continue
        homes[name].append(_settle(name, models[name], room, len(homes[name]) + 1).name)
    return {name: tuple(found) for name, found in homes.items()}


def _settle(name: str, model: ModelDemand, places: Sequence[Place], homes: int) -> Place:
    """Put a model where it suits best: with room, where it is in memory already, with the least load."""
    best = min(
        places,
        key=lambda p: (p.free < model.size, name not in p.resident, p.load, -p.free, p.name),
    )
    best.models.add(name)
    best.free -= model.size
    best.load += model.load / homes
    return best
