"""Importance-aware models: mCache, algorithm 1. With estimated times to the next request, and with the true ones."""

from collections.abc import Mapping, Sequence

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.future import Future
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance, utility
from latebind.residency.rates import SHORTEST, WindowedGaps
from latebind.residency.whole import first_whole


class Iam(ByImportance):
    """Evicts whole models, the one of least importance first; the time to the next request from a sliding window."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self._gaps = WindowedGaps(config.window)

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        self._gaps.heard(model.name, now)
        super().requested(model, now)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Take the least important ones until there is room (lines 11 to 16)."""
        return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)

    def _importance(self, model: Held, now: float) -> float:
        return utility(model.footprint.penalty, model.footprint.size, self._gap(model, now))

    def _gap(self, model: Held, now: float) -> float:
        return self._gaps.gap(model.name, now)


class IamOracle(Iam):
    """IAM with the foreknowledge of requests that section 6.3.1 gives it: for simulations alone."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__(config)
        self._future = Future({})

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Hear when each model is going to be asked for: seconds, ascending."""
        self._future = Future(times)

    def _gap(self, model: Held, now: float) -> float:
        return max(self._future.next_use(model, now) - now, SHORTEST)
