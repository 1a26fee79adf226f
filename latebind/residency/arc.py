"""Adaptive replacement (Megiddo and Modha, FAST 2003, figure 4), in bytes: models of any size take pages' place."""

from collections import OrderedDict
from collections.abc import Iterator

from latebind.domain.config import ResidencyConfig
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.whole import may_go_whole


class Recency:
    """Names and sizes of models in the order in which they were put here, and all their bytes."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0

    def __contains__(self, model: Held) -> bool:
        return model.name in self.sizes

    def put(self, model: Held) -> None:
        """Put a model last that is not here."""
        self.sizes[model.name] = model.footprint.size
        self.bytes += model.footprint.size

    def remove(self, model: Held) -> None:
        """Let a model go that is here."""
        self.bytes -= self.sizes.pop(model.name)

    def cut(self, size: float) -> None:
        """Let the first go until no more than `size` bytes are left."""
        while self.sizes and self.bytes > size:
            self.bytes -= self.sizes.popitem(last=False)[1]

    def whole(self, view: MemoryView, wanted: Held) -> Iterator[Held]:
        """Go through those of which all may go."""
        models = (view.evictable.get(name) for name in self.sizes)
        return (model for model in models if model and may_go_whole(model, view, wanted))


class Arc:
    """Two lists of models in memory, asked for once (T1) and more often (T2), each with a list of those gone from it.

    A request for one that is gone from T1 (B1) moves the target of its bytes (p) up, one gone from T2 (B2) down.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        self._budget = config.budget
        self._target = 0.0
        self._once, self._often = Recency(), Recency()
        self._gone_once, self._gone_often = Recency(), Recency()
        self._coming: dict[str, Recency] = {}  # where those go that were asked for and are not there yet
        self._returning: set[str] = set()  # of those, who was gone from T2

    def requested(self, model: Held, now: float) -> None:
        """Move it to the end of T2, or learn from where it has gone."""
        del now
        # 1. It is in memory (case I).
        for part in (self._once, self._often):
            if model in part:
                part.remove(model)
                self._often.put(model)
                return
        # 2. It is gone from T1: that should have had more (case II).
        if model in self._gone_once:
            share = max(1.0, self._gone_often.bytes / self._gone_once.bytes)
            self._target = min(self._budget, self._target + share * model.footprint.size)
            self._gone_once.remove(model)
            self._coming[model.name] = self._often
        # 3. It is gone from T2: T1 should have had less (case III).
        elif model in self._gone_often:
            share = max(1.0, self._gone_once.bytes / self._gone_often.bytes)
            self._target = max(0.0, self._target - share * model.footprint.size)
            self._gone_often.remove(model)
            self._coming[model.name] = self._often
            self._returning.add(model.name)
        # 4. It is new, or asked for again while it is on its way (case IV).
        else:
            self._coming[model.name] = self._often if model.name in self._coming else self._once

    def loaded(self, model: Held, now: float) -> None:
        """Put it where its request said; one that nobody asked for counts as asked for once."""
        del now
        if model not in self._once and model not in self._often:
            self._coming.pop(model.name, self._once).put(model)
            self._returning.discard(model.name)
            self._bound()

    def evicted(self, model: Held, now: float) -> None:
        """Remember that it is gone."""
        del now
        part, gone = (self._once, self._gone_once) if model in self._once else (self._often, self._gone_often)
        part.remove(model)
        gone.put(model)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Take from T1 what it has beyond its target, else from T2 (REPLACE)."""
        del now
        self._budget = view.budget
        found: list[Victim] = []
        in_once, in_often = self._once.whole(view, wanted), self._often.whole(view, wanted)
        once, often = next(in_once, None), next(in_often, None)
        left = self._once.bytes
        while need > 0 and (model := once if often is None or (once and self._beyond(left, wanted)) else often):
            found.append(Victim(model.name, model.may_go()))
            need -= model.bytes
            if model is once:
                left -= model.bytes
                once = next(in_once, None)
            else:
                often = next(in_often, None)
        return found if need <= 0 else []

    def _beyond(self, once: int, wanted: Held) -> bool:
        """Return whether T1 has more than it should, or as much where the request says that it should have less."""
        return once > self._target or (once == self._target and wanted.name in self._returning)

    def _bound(self) -> None:
        """Remember no more than the budget for T1 and B1, and twice as much for all (case IV, A and B)."""
        self._gone_once.cut(self._budget - self._once.bytes)
        rest = 2 * self._budget - self._once.bytes - self._often.bytes - self._gone_once.bytes
        self._gone_often.cut(rest)
