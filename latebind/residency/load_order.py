"""Chooses which model is loaded next, among those that requests wait for. Pure."""

from collections.abc import Mapping

from latebind.batching.admission import Lane
from latebind.domain.config import ResidencyConfig
from latebind.residency.model_state import ModelState


class LoadOrder:
    """Overdue models first, then the most urgent one; or always the one with the oldest request, by configuration."""

    def __init__(self, config: ResidencyConfig, lanes: Mapping[str, Lane]) -> None:
        self._config = config
        self._lanes = lanes

    def oldest(self, model: ModelState) -> int:
        """Return the id of the request that has waited longest for a model."""
        return self._lanes[model.name].oldest.id

    def next(self, waiting: Mapping[str, ModelState], now: float) -> ModelState:
        """Return the model to load, of those `waiting` that are not complete; there must be one."""
        incomplete = [model for model in waiting.values() if not model.complete]
        limit = self._overdue_after(waiting)
        overdue = [model for model in incomplete if self._has_waited(model, limit, now)]
        if overdue or self._config.order == "oldest":
            return min(overdue or incomplete, key=self.oldest)
        return max(incomplete, key=lambda model: self._urgency(model, now))

    def is_overdue(self, model: ModelState, waiting: Mapping[str, ModelState], now: float) -> bool:
        """Return whether a model must be loaded soon, or its oldest request waits longer than `patience` seconds."""
        return self._has_waited(model, self._overdue_after(waiting), now)

    def _overdue_after(self, waiting: Mapping[str, ModelState]) -> float:
        """Return the seconds of waiting after which a model is overdue: loads that go first count against patience."""
        ahead = sum([model.load_seconds for model in waiting.values()])
        return max(self._config.patience - ahead, 0.25 * self._config.patience)

    def _has_waited(self, model: ModelState, seconds: float, now: float) -> bool:
        return model.waiting > 0 and now - self._lanes[model.name].oldest.arrived >= seconds

    def _urgency(self, model: ModelState, now: float) -> tuple[float, float]:
        """Return the summed waiting time of its requests per second of loading, then their number per second."""
        seconds = max(model.load_seconds, 1e-9)
        return self._lanes[model.name].waited(now) / seconds, model.waiting / seconds
