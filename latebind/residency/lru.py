"""LRU, least recently used: the baseline of most servers (mCache, section 6.3)."""

from collections import OrderedDict

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState
from latebind.residency.whole_models import first_whole


class Lru:
    """Evicts whole models, the one whose last request is oldest first."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._last: OrderedDict[str, ModelState] = OrderedDict()  # requested or loaded models, the latest last

    def requested(self, model: ModelState, now: float) -> None:
        """Move it to the end."""
        del now
        self._last[model.name] = model
        self._last.move_to_end(model.name)

    def loaded(self, model: ModelState, now: float) -> None:
        """Append it if nobody has requested it."""
        del now
        self._last.setdefault(model.name, model)

    def evicted(self, model: ModelState, now: float) -> None:
        """Forget it."""
        del now
        self._last.pop(model.name, None)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the front."""
        del now
        return first_whole(self._last.values(), view, need, wanted)
