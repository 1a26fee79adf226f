"""Which models have to do with engines that died: those that ran as it happened, counted. Pure."""

from collections.abc import Iterable


class Crashes:
    """Crashes of late, by model. `most` of them `within` so many seconds are too many."""

    def __init__(self, most: int, within: float) -> None:
        self._most = most
        self._within = within
        self._times: dict[str, list[float]] = {}

    def happened(self, running: Iterable[str], now: float) -> list[str]:
        """Take note of a crash while these models ran; return those with which it was one too many."""
        blamed = []
        for model in running:
            times = [time for time in self._times.get(model, ()) if now - time < self._within]
            self._times[model] = [*times, now]
            if len(times) + 1 >= self._most:
                blamed.append(model)
        return blamed

    def forget(self, model: str) -> None:
        """Begin again with a model, because it is another or somebody says so."""
        self._times.pop(model, None)
