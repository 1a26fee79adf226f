"""Models in memory in the order of a priority that only requests change, not time: for LFU, SRRIP and GDSF. Pure."""

from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState
from latebind.residency.ranking import Ranking
from latebind.residency.whole_models import first_whole


class RankedModels:
    """The lowest priority comes first; of equal ones, the model that was put here longest ago."""

    def __init__(self) -> None:
        self._ranking = Ranking[tuple[float, int]]()
        self._models: dict[str, ModelState] = {}
        self._puts = 0

    def __contains__(self, model: ModelState) -> bool:
        return model.name in self._models

    def put(self, model: ModelState, priority: float) -> None:
        """Insert a model, or change its priority."""
        self._puts += 1
        self._models[model.name] = model
        self._ranking.put(model.name, (priority, self._puts))

    def remove(self, model: ModelState) -> float:
        """Remove a model that is here; return its priority."""
        del self._models[model.name]
        return self._ranking.remove(model.name)[0]

    def victims(self, view: MemoryView, need: int, wanted: ModelState) -> list[Victim]:
        """Return whole models that free `need` bytes, the lowest priority first; nothing where all free less."""
        return first_whole((self._models[name] for name in self._ranking), view, need, wanted)
