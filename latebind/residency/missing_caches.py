"""Learned caches that are not in memory: which one is loaded when nobody else wants the room. Pure."""

from latebind.residency.model_state import ModelState


class MissingCaches:
    """The models with all stages in memory and a learned cache missing, in the order in which they became complete."""

    def __init__(self) -> None:
        self._models: dict[str, ModelState] = {}

    def update(self, model: ModelState) -> None:
        """Note that pieces of a model have been loaded or evicted."""
        if model.complete and any(piece not in model.resident for piece in _caches(model)):
            self._models[model.name] = model
        else:
            self._models.pop(model.name, None)

    def next(self, free: int) -> tuple[ModelState, int] | None:
        """Return the first missing cache that fits into `free` bytes, as its model and its piece; None without one."""
        if free <= 0:
            return None
        for model in self._models.values():
            for piece in _caches(model):
                if piece not in model.resident and model.footprint.sizes[piece] <= free:
                    return model, piece
        return None


def _caches(model: ModelState) -> range:
    """Return the pieces of a model that are learned caches."""
    return range(model.footprint.stages, len(model.footprint.sizes))
