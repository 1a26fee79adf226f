"""Belady's MIN for models (IBM Systems Journal 5, 1966): evicts what is requested latest. For simulations alone."""

from collections.abc import Mapping, Sequence

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.importance import ByImportance
from latebind.residency.model_state import ModelState
from latebind.residency.request_times import RequestTimes
from latebind.residency.whole_models import first_whole


class Belady(ByImportance):
    """Evicts whole models. Has the fewest misses where all models are of one size; is no optimum where they are not."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        super().__init__()
        self._future = RequestTimes({})

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Take the times of all requests for each model, in seconds, ascending."""
        self._future = RequestTimes(times)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models in the order of their next request, the latest first."""
        return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)

    def _importance(self, model: ModelState, now: float) -> float:
        return -self._future.next_use(model, now)
