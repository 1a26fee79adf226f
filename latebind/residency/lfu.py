"""LFU, least frequently used (the baseline of mCache, section 6.3): counts last for ever, or while in memory."""

from collections import Counter

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState
from latebind.residency.ranked_models import RankedModels


class Lfu:
    """Evicts whole models, the one with the fewest requests first. Counts of absent models are kept."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._counts: Counter[str] = Counter()
        self._ranked = RankedModels()

    def requested(self, model: ModelState, now: float) -> None:
        """Count it."""
        del now
        self._counts[model.name] += 1
        if model in self._ranked:
            self._ranked.put(model, self._counts[model.name])

    def loaded(self, model: ModelState, now: float) -> None:
        """Rank it by its count."""
        del now
        self._ranked.put(model, self._counts[model.name])

    def evicted(self, model: ModelState, now: float) -> None:
        """Keep only its count."""
        del now
        self._ranked.remove(model)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the lowest count."""
        del now
        return self._ranked.victims(view, need, wanted)


class LfuInMemory(Lfu):
    """LFU whose counts start anew when a model is evicted, as in caches that know only what they hold."""

    def evicted(self, model: ModelState, now: float) -> None:
        """Forget its count."""
        super().evicted(model, now)
        del self._counts[model.name]
