"""Which models to blame for crashes of the engine: counts, by model, the crashes while it ran. Pure."""

from collections.abc import Iterable


class Crashes:
    """Recent crashes by model. A model is to blame with `most` of them `within` so many seconds."""

    def __init__(self, most: int, within: float) -> None:
        self._most = most
        self._within = within
        self._times: dict[str, list[float]] = {}

    def happened(self, running: Iterable[str], now: float) -> list[str]:
        """Record a crash while these models ran; return those that have now reached the limit."""
        blamed = []
        for model in running:
            times = [time for time in self._times.get(model, ()) if now - time < self._within]
            self._times[model] = [*times, now]
            if len(times) + 1 >= self._most:
                blamed.append(model)
        return blamed

    def forget(self, model: str) -> None:
        """Clear a model's record, because it was replaced or somebody asked to load it again."""
        self._times.pop(model, None)
