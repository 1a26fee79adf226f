"""Where models belong, where memory does not hold all of them in every replica: by importance. Pure.

What a replica loads it loads on demand; placement only says where calls go, so that few replicas need each model. A
model in none of whose homes it fits still has one, which loads it when it is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A model: its `size` in bytes, the seconds that it takes to load (`penalty`) and to answer one request (`work`).

    `rate` are the requests a second that come for it.
    """

    size: int
    penalty: float
    work: float
    rate: float

    @property
    def importance(self) -> float:
        """The seconds of loading that a byte of it saves a second, where it is in memory (mCache, equation 1)."""
        return self.rate * self.penalty / max(self.size, 1)

    @property
    def load(self) -> float:
        """The workers that its requests keep busy."""
        return self.rate * self.work


@dataclass(slots=True)
class Place:
    """A replica as it is filled: the bytes that are free, the work that it has, what lies in its memory already."""

    name: str
    free: int
    resident: frozenset[str] = frozenset()
    load: float = 0.0
    models: set[str] = field(default_factory=set)


def place(models: Mapping[str, ModelDemand], places: Sequence[Place]) -> dict[str, tuple[str, ...]]:
    """Return the homes of every model, the first one before the others. `places` are filled.

    The most important first, each gets one home. Then what memory is left goes, one home after another, to the model
    whose homes have the most work each, as long as some replica without it has room.
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
    """Put a model into the place that suits it best: with room, where it lies already, with the least work."""
    best = min(
        places,
        key=lambda p: (p.free < model.size, name not in p.resident, p.load, -p.free, p.name),
    )
    best.models.add(name)
    best.free -= model.size
    best.load += model.load / homes
    return best
