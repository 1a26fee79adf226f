"""ARC, adaptive replacement (Megiddo and Modha, FAST 2003, figure 4), in bytes: for models of any size, not pages."""

from collections import OrderedDict
from collections.abc import Iterator

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState
from latebind.residency.whole_models import may_evict_whole


class RecencyList:
    """Models in the order in which they were appended, with their sizes and the sum of these."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, model: ModelState) -> bool:
        return model.name in self.sizes

    def put(self, model: ModelState) -> None:
        """Append a model that is not in the list."""
        self.sizes[model.name] = model.footprint.size
        self.bytes += model.footprint.size

    def remove(self, model: ModelState) -> None:
        """Remove a model that is in the list."""
        self.bytes -= self.sizes.pop(model.name)

    def cut(self, size: float) -> None:
        """Remove models from the front until at most `size` bytes are left."""
        while self.sizes and self.bytes > size:
            self.bytes -= self.sizes.popitem(last=False)[1]

    def whole(self, view: MemoryView, wanted: ModelState) -> Iterator[ModelState]:
        """Iterate over the models that may be evicted as a whole."""
        models = (view.evictable.get(name) for name in self.sizes)
        return (model for model in models if model and may_evict_whole(model, view, wanted))


class Arc:
    """Evicts whole models, by two lists of models in memory: requested once (T1), and more often (T2).

    Each has a ghost list of the models evicted from it (B1, B2). A request for a model in B1 raises the target size of
    T1 in bytes (p); one for a model in B2 lowers it.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        self._budget = config.budget
        self._target = 0.0
        self._once, self._often = RecencyList(), RecencyList()
        self._ghosts_once, self._ghosts_often = RecencyList(), RecencyList()
        self._coming: dict[str, RecencyList] = {}  # the list that a requested model joins once it is loaded
        self._returning: set[str] = set()  # requested models, not loaded yet, that were in B2

    def requested(self, model: ModelState, now: float) -> None:
        """Move it to the end of T2; for an absent model, adapt the target."""
        del now
        # 1. It is in memory (case I).
        for part in (self._once, self._often):
            if model in part:
                part.remove(model)
                self._often.put(model)
                return
        # 2. It was evicted from T1, which should have been larger (case II).
        if model in self._ghosts_once:
            share = max(1.0, self._ghosts_often.bytes / self._ghosts_once.bytes)
            self._target = min(self._budget, self._target + share * model.footprint.size)
            self._ghosts_once.remove(model)
            self._coming[model.name] = self._often
        # 3. It was evicted from T2: T1 should have been smaller (case III).
        elif model in self._ghosts_often:
            share = max(1.0, self._ghosts_once.bytes / self._ghosts_often.bytes)
            self._target = max(0.0, self._target - share * model.footprint.size)
            self._ghosts_often.remove(model)
            self._coming[model.name] = self._often
            self._returning.add(model.name)
        # 4. It is new, or requested again before it was loaded (case IV).
        else:
            self._coming[model.name] = self._often if model.name in self._coming else self._once

    def loaded(self, model: ModelState, now: float) -> None:
        """Append it to the list that its request chose; a model that nobody requested counts as requested once."""
        del now
        if model not in self._once and model not in self._often:
            self._coming.pop(model.name, self._once).put(model)
            self._returning.discard(model.name)
            self._bound()

    def evicted(self, model: ModelState, now: float) -> None:
        """Move it to the ghost list."""
        del now
        part, gone = (self._once, self._ghosts_once) if model in self._once else (self._often, self._ghosts_often)
        part.remove(model)
        gone.put(model)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take from T1 while it is larger than its target, else from T2 (REPLACE)."""
        del now
        self._budget = view.budget
        found: list[Victim] = []
        in_once, in_often = self._once.whole(view, wanted), self._often.whole(view, wanted)
        once, often = next(in_once, None), next(in_often, None)
        left = self._once.bytes
        while need > 0 and (model := once if often is None or (once and self._beyond(left, wanted)) else often):
            found.append(Victim(model.name, model.evictable_pieces()))
            need -= model.bytes
            if model is once:
                left -= model.bytes
                once = next(in_once, None)
            else:
                often = next(in_often, None)
        return found if need <= 0 else []

    def _beyond(self, once: int, wanted: ModelState) -> bool:
        """Return whether T1 is larger than its target, or as large and `wanted` was evicted from T2."""
        return once > self._target or (once == self._target and wanted.name in self._returning)

    def _bound(self) -> None:
        """Shorten the ghost lists: T1 and B1 to the budget, all four lists to twice as much (case IV, A and B)."""
        self._ghosts_once.cut(self._budget - self._once.bytes)
        rest = 2 * self._budget - self._once.bytes - self._often.bytes - self._ghosts_once.bytes
        self._ghosts_often.cut(rest)
