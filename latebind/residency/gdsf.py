"""GDSF, Greedy-Dual-Size-Frequency (Cherkasova, HP Labs HPL-98-69, 1998), with which FaasCache keeps functions."""

from collections import Counter

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.importance import utility
from latebind.residency.model_state import ModelState
from latebind.residency.ranked_models import RankedModels


class Gdsf:
    """Evicts whole models by frequency x cost / size, plus an inflation, the priority of the last victim so far.

    A model's inflation is that of its last use. Frequencies of absent models are kept: otherwise every model would be
    new whenever it is loaded.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._counts: Counter[str] = Counter()
        self._ranked = RankedModels()
        self._inflation = 0.0  # L of the paper

    def requested(self, model: ModelState, now: float) -> None:
        """Count it."""
        self._counts[model.name] += 1
        if model in self._ranked:
            self.loaded(model, now)

    def loaded(self, model: ModelState, now: float) -> None:
        """Give it a new priority."""
        del now
        density = utility(model.footprint.penalty, model.footprint.size, 1.0)
        self._ranked.put(model, self._inflation + self._counts[model.name] * density)

    def evicted(self, model: ModelState, now: float) -> None:
        """Raise the inflation to the priority of the victim."""
        del now
        self._inflation = max(self._inflation, self._ranked.remove(model))

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the lowest priority."""
        del now
        return self._ranked.victims(view, need, wanted)
