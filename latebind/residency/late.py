"""`late`: pieces go one by one, those first that are worth least until their model runs again, knowing who waits.

The worth of a byte is the seconds that it takes to come back (of a learned cache: that it saves a request), by the
time until its model is asked for next: of a model that somebody waits for, as long as it takes to serve those before,
and of others longer than it takes to serve all who wait. A model that is being loaded is one of those whose pieces may
go, namely those that have run: where it is worth least it passes through a part of the memory that is smaller than
itself, taken from no one. Where models come and go whole, the set goes whose loss costs least in all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from latebind.domain.config import ResidencyConfig
from latebind.domain.footprint import Footprint
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.importance import ByImportance, utility
from latebind.residency.rates import SHORTEST, Gaps, JumpingGaps, KnownGaps, MovingGaps
from latebind.residency.whole import SOME, Item, least_set, may_go_whole

JUMP = 0.03  # probability that a model's rate is another one after a request; .01 and .1 are within 1 %
ALPHA_OF_ALL = 0.02  # weight of the newest gap between any requests
AT_ONCE = 2  # models whose lots are looked at together

Going = tuple[str, int, int]  # a model, its piece that is to go, and the bytes of that


@dataclass(frozen=True, slots=True)
class Lot:
    """Pieces of one model of which a byte is worth the same `seconds`, in the order in which they go."""

    seconds: float
    pieces: tuple[int, ...]


class Late(ByImportance):
    """The joint policy: stages and learned caches, or whole models where `stages` is off."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self.whole = not config.stages
        self._foresight = config.foresight
        self._gaps: Gaps = JumpingGaps(config.window, JUMP)
        self._every = MovingGaps(ALPHA_OF_ALL, config.window)
        self._lots: dict[str, tuple[Footprint, list[Lot]]] = {}
        self._waiting = 0

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        self._gaps.heard(model.name, now)
        self._every.heard("", now)
        super().requested(model, now)

    def gain(self, model: Held, now: float) -> float:
        """Return the worth of a byte of its stages, whether they are there or not."""
        stages = next(lot for lot in self._lots_of(model) if 0 in lot.pieces)
        return stages.seconds / self._until(model, now)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Take what is worth least."""
        self._waiting = view.waiting if self._foresight else 0
        return self._set(view, need, wanted, now) if self.whole else self._pieces(view, need, now)

    def _set(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Choose among the least important whole models, `SOME` of them or as many as are enough."""
        some: list[Held] = []
        size = 0
        for model in self._queue.ascending(view.evictable, now):
            if may_go_whole(model, view, wanted) and model.bytes:
                some.append(model)
                size += model.bytes
                if len(some) >= SOME and size >= need:
                    break
        items = [Item(model.footprint.penalty / self._until(model, now), model.bytes) for model in some]
        return [Victim(some[place].name, some[place].may_go()) for place in least_set(items, need)]

    def _pieces(self, view: MemoryView, need: int, now: float) -> list[Victim]:
        """Look at the lots of ever more models until they are enough."""
        models = self._queue.ascending(view.evictable, now)
        lots: list[tuple[float, str, Lot]] = []
        while some := list(islice(models, AT_ONCE)):
            for model in some:
                until = self._until(model, now)
                lots += [(lot.seconds / until, model.name, lot) for lot in self._lots_of(model)]
            lots.sort(key=lambda entry: entry[:2])
            if going := _enough([(view.evictable[name], lot) for _, name, lot in lots], need):
                return _victims(going)
        return []

    def _importance(self, model: Held, now: float) -> float:
        """Return the worth of a byte of what would go first of it."""
        seconds = next((lot.seconds for lot in self._lots_of(model) if not model.resident.isdisjoint(lot.pieces)), 0.0)
        return seconds / self._until(model, now)

    def _until(self, model: Held, now: float) -> float:
        """Return the seconds until a model is asked for next, as far as is known."""
        if not self._waiting:
            return self._gaps.gap(model.name, now)
        a_request = self._every.gap("", now)
        if model.waiting and model.place is not None:
            return a_request * (model.place + 1)
        return a_request * self._waiting + self._gaps.gap(model.name, now)

    def _lots_of(self, model: Held) -> list[Lot]:
        known = self._lots.get(model.name)
        if known is None or known[0] is not model.footprint:
            known = self._lots[model.name] = model.footprint, _lots(model.footprint)
        return known[1]


class LateOracle(Late):
    """`late` that is told how often each model is asked for in all, and never when: for simulations alone.

    Where requests are independent of those before, nobody without foreknowledge knows more: what it reaches is a bound.
    Where rates change, whoever follows them can be better.
    """

    def foretell(self, times: Mapping[str, Sequence[float]]) -> None:
        """Hear when each model is going to be asked for: seconds, ascending."""
        every = sorted([time for some in times.values() for time in some])
        span = max(every[-1] - every[0], SHORTEST) if every else 0.0
        self._gaps = KnownGaps({name: span / len(some) for name, some in times.items() if some})


def _lots(footprint: Footprint) -> list[Lot]:
    """Return the stages, the last one first, and each learned cache by itself; what is worth least first."""
    stages = range(footprint.stages)
    size = sum(footprint.sizes[: footprint.stages])
    seconds = footprint.fixed + sum(footprint.seconds[: footprint.stages])
    lots = [Lot(utility(seconds, size, 1.0), tuple(reversed(stages)))]
    for cache, gain in enumerate(footprint.gains):
        piece = footprint.stages + cache
        lots.append(Lot(utility(gain, footprint.sizes[piece], 1.0), (piece,)))
    return sorted(lots, key=lambda lot: lot.seconds)


def _enough(lots: Sequence[tuple[Held, Lot]], need: int) -> list[Going]:
    """Return pieces from the front on that free `need` bytes, without those that were not needed in the end."""
    going: list[Going] = []
    for model, lot in lots:
        resident, sizes, all_may = model.resident, model.footprint.sizes, model.needed == inf
        for piece in lot.pieces:
            if piece in resident and (all_may or model.stage_of(piece) < model.needed):
                going.append((model.name, piece, sizes[piece]))
                need -= sizes[piece]
                if need <= 0:
                    return _without_spare(going, -need)
    return []


def _without_spare(going: list[Going], spare: int) -> list[Going]:
    """Let what is worth most stay where `spare` bytes have room for it; of a model always what would go last."""
    stay: set[str] = set()
    kept: list[Going] = []
    for model, piece, size in reversed(going):
        if model not in stay and size <= spare:
            spare -= size
        else:
            stay.add(model)
            kept.append((model, piece, size))
    return kept[::-1]


def _victims(going: list[Going]) -> list[Victim]:
    pieces: dict[str, list[int]] = {}
    for model, piece, _ in going:
        pieces.setdefault(model, []).append(piece)
    return [Victim(model, tuple(some)) for model, some in pieces.items()]
