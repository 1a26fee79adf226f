"""IAM, importance-aware models (mCache, algorithm 1): with the estimated time to the next request, or the true one."""

from collections.abc import Mapping, Sequence

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.importance import ByImportance, utility
from latebind.residency.model_state import ModelState
from latebind.residency.rates import SHORTEST, WindowedGaps
from latebind.residency.request_times import RequestTimes
from latebind.residency.whole_models import first_whole


class Iam(ByImportance):
    """Evicts whole models, the least important first. Estimates the time to the next request by a sliding window."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self._gaps = WindowedGaps(config.window)

    def requested(self, model: ModelState, now: float) -> None:
        """Count it."""
        self._gaps.observe(model.name, now)
        super().requested(model, now)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take the least important models until they free enough (lines 11 to 16)."""
        return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)

    def _importance(self, model: ModelState, now: float) -> float:
        return utility(model.footprint.penalty, model.footprint.size, self._gap(model, now))

    def _gap(self, model: ModelState, now: float) -> float:
        return self._gaps.gap(model.name, now)


class IamOracle(Iam):
    """IAM that knows future requests, as in section 6.3.1: for simulations alone."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__(config)
        self._future = RequestTimes({})

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Take the times of all requests for each model, in seconds, ascending."""
        self._future = RequestTimes(times)

    def _gap(self, model: ModelState, now: float) -> float:
        return max(self._future.next_use(model, now) - now, SHORTEST)
