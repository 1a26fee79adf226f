"""Learned caches that are not in memory: which one is loaded when nobody else wants the room. Pure."""

from collections.abc import Iterable

from latebind.residency.back_off import BackOff
from latebind.residency.model_state import ModelState

Cache = tuple[str, int]  # a model's name and the number of the piece


class MissingCaches:
    """The models with all stages in memory and a learned cache missing, in the order in which they became complete.

    A cache that could not be loaded is tried again after `back_off` seconds, twice as many each further time.
    """

    def __init__(self, back_off: float) -> None:
        self._models: dict[str, ModelState] = {}
        self._back_off = BackOff[Cache](back_off)

    def update(self, model: ModelState) -> None:
        """Note that pieces of a model have been loaded or evicted."""
        if model.complete and any(piece not in model.resident for piece in _caches(model)):
            self._models[model.name] = model
        else:
            self._models.pop(model.name, None)

    def loaded(self, model: ModelState, pieces: Iterable[int]) -> None:
        """Note that pieces of a model have been loaded."""
        for piece in pieces:
            self._back_off.loaded((model.name, piece))
        self.update(model)

    def failed(self, model: ModelState, pieces: Iterable[int], now: float) -> None:
        """Note that pieces of a model could not be loaded."""
        for piece in pieces:
            self._back_off.failed((model.name, piece), now)

    def next(self, free: int, now: float) -> tuple[ModelState, int] | None:
        """Return the first missing cache that fits into `free` bytes, as its model and its piece; None without one."""
        if free <= 0:
            return None
        for model in self._models.values():
            for piece in _caches(model):
                if piece in model.resident or model.footprint.sizes[piece] > free:
                    continue
                if not self._back_off.is_on((model.name, piece), now):
                    return model, piece
        return None


def _caches(model: ModelState) -> range:
    """Return the pieces of a model that are learned caches."""
    return range(model.footprint.stages, len(model.footprint.sizes))
