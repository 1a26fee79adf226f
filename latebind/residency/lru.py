"""Least recently used: the baseline of most servers (mCache, section 6.3)."""

from collections import OrderedDict

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.whole import first_whole


class Lru:
    """Evicts whole models, the one first whose last request came longest ago."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._last: OrderedDict[str, Held] = OrderedDict()  # all models that were asked for, the last one last

    def requested(self, model: Held, now: float) -> None:
        """Put it last."""
        del now
        self._last[model.name] = model
        self._last.move_to_end(model.name)

    def loaded(self, model: Held, now: float) -> None:
        """Take note of one that nobody has asked for."""
        del now
        self._last.setdefault(model.name, model)

    def evicted(self, model: Held, now: float) -> None:
        """What is gone is out of the running."""
        del now
        self._last.pop(model.name, None)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Go through the models from the front."""
        del now
        return first_whole(self._last.values(), view, need, wanted)
