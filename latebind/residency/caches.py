"""Learned caches that come when nobody else wants their place: which one is next. Pure."""

from latebind.residency.held import Held


class Caches:
    """Models of which all stages are in memory and some learned cache is not: who was complete first, in front."""

    def __init__(self) -> None:
        self._lacking: dict[str, Held] = {}

    def settle(self, model: Held) -> None:
        """Hear that pieces of a model have come or gone."""
        if model.complete and any(piece not in model.resident for piece in _caches(model)):
            self._lacking[model.name] = model
        else:
            self._lacking.pop(model.name, None)

    def next(self, free: int) -> tuple[Held, int] | None:
        """Return the first model with a cache that fits into so many bytes, and its piece; None where there is none."""
        if free <= 0:
            return None
        for model in self._lacking.values():
            for piece in _caches(model):
                if piece not in model.resident and model.footprint.sizes[piece] <= free:
                    return model, piece
        return None


def _caches(model: Held) -> range:
    return range(model.footprint.stages, len(model.footprint.sizes))
