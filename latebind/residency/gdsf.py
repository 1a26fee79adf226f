"""Greedy-Dual-Size-Frequency (Cherkasova, HP Labs HPL-98-69, 1998), as FaasCache keeps functions alive with."""

from collections import Counter

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.importance import utility
from latebind.residency.ranked import RankedModels


class Gdsf:
    """Evicts whole models by frequency x cost / size, plus what the last victim was worth when this was last used.

    Frequencies are kept of what is absent: with counts in memory alone every model would be new again.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._counts: Counter[str] = Counter()
        self._ranked = RankedModels()
        self._inflation = 0.0  # L of the paper

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        self._counts[model.name] += 1
        if model in self._ranked:
            self.loaded(model, now)

    def loaded(self, model: Held, now: float) -> None:
        """Rank it by what it is worth from now on."""
        del now
        density = utility(model.footprint.penalty, model.footprint.size, 1.0)
        self._ranked.put(model, self._inflation + self._counts[model.name] * density)

    def evicted(self, model: Held, now: float) -> None:
        """Raise what those will be worth that are used from now on."""
        del now
        self._inflation = max(self._inflation, self._ranked.remove(model))

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Go through the models from the lowest worth."""
        del now
        return self._ranked.victims(view, need, wanted)
