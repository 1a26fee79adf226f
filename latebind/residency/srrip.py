"""Static re-reference interval prediction (Jaleel et al., ISCA 2010, section 4), with hit priority, for any size."""

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.ranked import RankedModels

DISTANT = 3  # the highest prediction of two bits
LONG = 2  # of what has just been loaded
SOON = 0  # of what has just been asked for again


class Srrip:
    """Evicts whole models of a distant prediction; where there are none, all age until there are.

    The age that all have in common is kept apart: a model is worth the age at which it would be distant, so that ageing
    is one addition. Among distant ones the paper takes the first in the set; here it is who was touched longest ago.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._ranked = RankedModels()
        self._age = 0.0

    def requested(self, model: Held, now: float) -> None:
        """Predict that it is asked for again soon, if it is in memory."""
        del now
        if model in self._ranked:
            self._ranked.put(model, self._age + DISTANT - SOON)

    def loaded(self, model: Held, now: float) -> None:
        """Predict that it is not asked for again in a long time."""
        del now
        if model not in self._ranked:
            self._ranked.put(model, self._age + DISTANT - LONG)

    def evicted(self, model: Held, now: float) -> None:
        """Let all age by as much as made this one distant."""
        del now
        self._age = max(self._age, self._ranked.remove(model))

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Go through the models from the most distant."""
        del now
        return self._ranked.victims(view, need, wanted)
