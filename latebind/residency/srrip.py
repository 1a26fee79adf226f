"""SRRIP, static re-reference interval prediction (Jaleel et al., ISCA 2010, section 4): hit priority, any size."""

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState
from latebind.residency.ranked_models import RankedModels

DISTANT = 3  # the highest prediction of two bits
LONG = 2  # for a model that has just been loaded
SOON = 0  # for a model that has just been requested again


class Srrip:
    """Evicts whole models with a distant prediction; where there are none, all models age until there are.

    Ageing is one addition to a common age: a model is ranked by the age at which its prediction becomes distant. Among
    distant models the paper takes the first in the set; this policy takes the one that was used longest ago.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._ranked = RankedModels()
        self._age = 0.0

    def requested(self, model: ModelState, now: float) -> None:
        """Predict that it is requested again soon, if it is in memory."""
        del now
        if model in self._ranked:
            self._ranked.put(model, self._age + DISTANT - SOON)

    def loaded(self, model: ModelState, now: float) -> None:
        """Predict that it is not requested again for a long time."""
        del now
        if model not in self._ranked:
            self._ranked.put(model, self._age + DISTANT - LONG)

    def evicted(self, model: ModelState, now: float) -> None:
        """Age all models until the prediction of this one is distant."""
        del now
        self._age = max(self._age, self._ranked.remove(model))

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the most distant."""
        del now
        return self._ranked.victims(view, need, wanted)
