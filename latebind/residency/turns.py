"""Whose model is loaded next, of those that somebody waits for. Pure."""

from collections.abc import Mapping

from latebind.batching.lane import Lane
from latebind.domain.config import ResidencyConfig
from latebind.residency.held import Held


class Turns:
    """Whoever has waited too long goes first, else the most urgent, or whoever came first where the order says so."""

    def __init__(self, config: ResidencyConfig, lanes: Mapping[str, Lane]) -> None:
        self._config = config
        self._lanes = lanes

    def oldest(self, model: Held) -> int:
        """Return the request that has waited longest for a model."""
        return self._lanes[model.name].oldest.id

    def next(self, waiting: Mapping[str, Held], now: float) -> Held:
        """Return the model to load, of those `waiting` that are not complete; there must be one."""
        wanted = [model for model in waiting.values() if not model.complete]
        trigger = self._trigger(waiting)
        overdue = [model for model in wanted if self._has_waited(model, trigger, now)]
        if overdue or self._config.order == "oldest":
            return min(overdue or wanted, key=self.oldest)
        return max(wanted, key=lambda model: self._urgency(model, now))

    def is_overdue(self, model: Held, waiting: Mapping[str, Held], now: float) -> bool:
        """Tell whether its oldest request must have its model soon, lest it wait longer than anybody is to."""
        return self._has_waited(model, self._trigger(waiting), now)

    def _trigger(self, waiting: Mapping[str, Held]) -> float:
        ahead = sum([one.load_seconds for one in waiting.values()])
        return max(self._config.patience - ahead, 0.25 * self._config.patience)

    def _has_waited(self, model: Held, seconds: float, now: float) -> bool:
        return model.waiting > 0 and now - self._lanes[model.name].oldest.arrived >= seconds

    def _urgency(self, model: Held, now: float) -> tuple[float, float]:
        """Return the seconds that its requests have waited together, for each second that loading it takes."""
        seconds = max(model.load_seconds, 1e-9)
        return self._lanes[model.name].waited(now) / seconds, model.waiting / seconds
