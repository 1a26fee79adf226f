"""Least frequently used: the baseline of mCache (section 6.3), with counts for ever or counts in memory alone."""

from collections import Counter

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.ranked import RankedModels


class Lfu:
    """Evicts whole models, the one first that was asked for least often; counts are kept of what is absent."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._counts: Counter[str] = Counter()
        self._ranked = RankedModels()

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        del now
        self._counts[model.name] += 1
        if model in self._ranked:
            self._ranked.put(model, self._counts[model.name])

    def loaded(self, model: Held, now: float) -> None:
        """Rank it by its count."""
        del now
        self._ranked.put(model, self._counts[model.name])

    def evicted(self, model: Held, now: float) -> None:
        """Keep its count alone."""
        del now
        self._ranked.remove(model)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Go through the models from the lowest count."""
        del now
        return self._ranked.victims(view, need, wanted)


class LfuInMemory(Lfu):
    """Counts begin anew when a model is evicted, as in caches that know only of what they hold."""

    def evicted(self, model: Held, now: float) -> None:
        """Forget its count."""
        super().evicted(model, now)
        del self._counts[model.name]
