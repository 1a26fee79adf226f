"""Belady's MIN for models (IBM Systems Journal 5, 1966): who is asked for last goes first. For simulations alone."""

from collections.abc import Mapping, Sequence

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.future import Future
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance
from latebind.residency.whole import first_whole


class Belady(ByImportance):
    """Evicts whole models. The fewest misses where all models are of one size; no optimum where they are not."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        super().__init__()
        self._future = Future({})

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Hear when each model is going to be asked for: seconds, ascending."""
        self._future = Future(times)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Go through the models from the one that is used last."""
        return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)

    def _importance(self, model: Held, now: float) -> float:
        return -self._future.next_use(model, now)
