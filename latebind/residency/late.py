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
from operator import itemgetter

from latebind.domain.config import ResidencyConfig
from latebind.domain.footprint import Footprint
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.importance import FEW, ByImportance, utility
from latebind.residency.rates import SHORTEST, Gaps, JumpingGaps, KnownGaps, MovingGaps
from latebind.residency.whole import SOME, Item, least_set, may_go_whole

JUMP = 0.03  # probability that a model's rate is another one after a request; .01 and .1 are within 1 %
ALPHA_OF_ALL = 0.02  # weight of the newest gap between any requests
AT_ONCE = 2  # models whose lots are looked at together
SOME_OF_MANY = 4  # whole models of which the best set is found where there are many: each is scored afresh


@dataclass(frozen=True, slots=True)
class Lot:
    """Pieces of one model of which a byte is worth the same `seconds`, in the order in which they go."""

    seconds: float
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lots:
    """What a model with this footprint consists of, what is worth least first, and the `penalty` of that footprint."""

    footprint: Footprint
    penalty: float
    lots: list[Lot]


Offer = tuple[float, str, Held, Lot]  # what a byte is worth of a lot of this model, in front of that its name
Going = tuple[Held, list[int]]  # pieces of a model that are to go, in this order
_worth = itemgetter(0, 1)


class Late(ByImportance):
    """The joint policy: stages and learned caches, or whole models where `stages` is off."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self.whole = not config.stages
        self._foresight = config.foresight
        self._gaps: Gaps = JumpingGaps(config.window, JUMP)
        self._every = MovingGaps(ALPHA_OF_ALL, config.window)
        self._lots: dict[str, Lots] = {}
        self._waiting = 0

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        self._gaps.heard(model.name, now)
        self._every.heard("", now)
        super().requested(model, now)

    def gain(self, model: Held, now: float) -> float:
        """Return the worth of a byte of its stages, whether they are there or not."""
        stages = next(lot for lot in self._lots_of(model).lots if 0 in lot.pieces)
        return stages.seconds / self._until(model, now)

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Take what is worth least."""
        self._waiting = view.waiting if self._foresight else 0
        return self._set(view, need, wanted, now) if self.whole else self._pieces(view, need, now)

    def _set(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Choose among the least important whole models, `SOME` of them, `SOME_OF_MANY`, or as many as are enough."""
        most = SOME if len(view.evictable) <= FEW else SOME_OF_MANY
        some: list[Held] = []
        size = 0
        for model in self._queue.ascending(view.evictable, now):
            if may_go_whole(model, view, wanted) and model.bytes:
                some.append(model)
                size += model.bytes
                if len(some) >= most and size >= need:
                    break
        items = [Item(self._lots_of(model).penalty / self._until(model, now), model.bytes) for model in some]
        return [Victim(some[place].name, some[place].may_go()) for place in least_set(items, need)]

    def _pieces(self, view: MemoryView, need: int, now: float) -> list[Victim]:
        """Look at the lots of ever more models until they are enough."""
        models, size = self._queue.ascending(view.evictable, now), 0
        offers: list[Offer] = []
        while some := list(islice(models, AT_ONCE)):
            for model in some:
                until = self._until(model, now)
                offers += [(lot.seconds / until, model.name, model, lot) for lot in self._lots_of(model).lots]
                size += model.bytes
            if size >= need:
                offers.sort(key=_worth)
                if going := _enough(offers, need):
                    return _victims(going)
        return []

    def _importance(self, model: Held, now: float) -> float:
        """Return the worth of a byte of what would go first of it."""
        for lot in self._lots_of(model).lots:
            if not model.resident.isdisjoint(lot.pieces):
                return lot.seconds / self._until(model, now)
        return 0.0

    def _until(self, model: Held, now: float) -> float:
        """Return the seconds until a model is asked for next, as far as is known."""
        if not self._waiting:
            return self._gaps.gap(model.name, now)
        a_request = self._every.gap("", now)
        if model.waiting and model.place is not None:
            return a_request * (model.place + 1)
        return a_request * self._waiting + self._gaps.gap(model.name, now)

    def _lots_of(self, model: Held) -> Lots:
        known = self._lots.get(model.name)
        if known is None or known.footprint is not model.footprint:
            footprint = model.footprint
            known = self._lots[model.name] = Lots(footprint, footprint.penalty, _lots(footprint))
        return known


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


def _enough(offers: Sequence[Offer], need: int) -> list[Going]:
    """Return pieces from the front on that free `need` bytes, without those that were not needed in the end."""
    going: list[Going] = []
    for _, _, model, lot in offers:
        pieces: list[int] = []
        going.append((model, pieces))
        resident, sizes, needed = model.resident, model.footprint.sizes, model.needed
        for piece in lot.pieces:
            if piece in resident and (needed == inf or model.stage_of(piece) < needed):
                pieces.append(piece)
                need -= sizes[piece]
                if need <= 0:
                    return _without_spare(going, -need)
    return []


def _without_spare(going: list[Going], spare: int) -> list[Going]:
    """Let what is worth most stay where `spare` bytes have room for it; of a model always what would go last."""
    goes: set[str] = set()
    for model, pieces in reversed(going):
        sizes = model.footprint.sizes
        while pieces and model.name not in goes:
            if sizes[pieces[-1]] <= spare:
                spare -= sizes[pieces.pop()]
            else:
                goes.add(model.name)
    return going


def _victims(going: list[Going]) -> list[Victim]:
    pieces: dict[str, list[int]] = {}
    for model, some in going:
        if some:
            pieces.setdefault(model.name, []).extend(some)
    return [Victim(model, tuple(some)) for model, some in pieces.items()]
