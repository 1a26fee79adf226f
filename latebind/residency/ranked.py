"""Models in memory by a worth that requests change and time does not: what LFU, SRRIP and GDSF choose from. Pure."""

from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.ranking import Ranking
from latebind.residency.whole import first_whole


class RankedModels:
    """The lowest worth goes first; of equal ones, whoever was put here longest ago."""

    def __init__(self) -> None:
        self._ranking = Ranking[tuple[float, int]]()
        self._models: dict[str, Held] = {}
        self._turn = 0

    def __contains__(self, model: Held) -> bool:
        return model.name in self._models

    def put(self, model: Held, worth: float) -> None:
        """Take in a model, or give it another worth."""
        self._turn += 1
        self._models[model.name] = model
        self._ranking.put(model.name, (worth, self._turn))

    def remove(self, model: Held) -> float:
        """Let a model go that is here; returns what it was worth."""
        del self._models[model.name]
        return self._ranking.remove(model.name)[0]

    def victims(self, view: MemoryView, need: int, wanted: Held) -> list[Victim]:
        """Return whole models of `need` bytes, from the lowest on; nothing where all are too few."""
        return first_whole((self._models[name] for name in self._ranking), view, need, wanted)
