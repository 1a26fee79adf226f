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
from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held
from latebind.residency.importance import FEW, ByImportance
from latebind.residency.lots import Lot, Lots, Offer, enough, lies_in, lots_of, worth_of
from latebind.residency.rates import SHORTEST, Gaps, JumpingGaps, KnownGaps, MovingGaps
from latebind.residency.whole import SOME, Item, least_set

JUMP = 0.03  # probability that a model's rate is another one after a request; .01 and .1 are within 1 %
ALPHA_OF_ALL = 0.02  # weight of the newest gap between any requests
AT_ONCE = 2  # models whose lots are looked at together
SOME_OF_MANY = 4  # whole models of which the best set is found where there are many: each is scored afresh


class Late(ByImportance):
    """The joint policy: stages and learned caches, or whole models where `stages` is off."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self.whole = not config.stages
        self._foresight = config.foresight
        self._trims = config.trim and not self.whole
        self._gaps: Gaps = JumpingGaps(config.window, JUMP)
        self._every = MovingGaps(ALPHA_OF_ALL, config.window)
        self._known: dict[str, _Known] = {}
        self._waiting = 0
        self._tailed = False  # whether any model has a tail
        self._wanted: Held | None = None
        self._idle = False  # whether nobody waits whom a load would stand in front of; many models are not looked at

    def requested(self, model: Held, now: float) -> None:
        """Count it."""
        self._gaps.heard(model.name, now)
        self._every.heard("", now)
        super().requested(model, now)

    def gain(self, model: Held, now: float) -> float:
        """Return the worth of a byte of its stages, whether they are there or not."""
        return self._lots_of(model).stages / self._until(model, now)

    def worth(self, model: Held, now: float) -> float:
        """Return the worth of a byte of what would go first, were loads never idle."""
        for lot in self._lots_of(model).lots:
            if lies_in(model, lot):
                return lot.seconds / self._until(model, now)
        return 0.0

    def victims(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Take what is worth least."""
        self._waiting = view.waiting if self._foresight else 0
        self._wanted = wanted
        self._idle = self._foresight and not view.waiting and len(view.evictable) <= FEW
        return self._set(view, need, wanted, now) if self.whole else self._pieces(view, need, now)

    def _set(self, view: MemoryView, need: int, wanted: Held, now: float) -> list[Victim]:
        """Choose among the least important whole models, `SOME` of them, `SOME_OF_MANY`, or as many as are enough."""
        most = SOME if len(view.evictable) <= FEW else SOME_OF_MANY
        some: list[Held] = []
        size = 0
        for model in self._queue.ascending(view.evictable, now):
            if model is not wanted and model.whole and model.bytes:
                some.append(model)
                size += model.bytes
                if len(some) >= most and size >= need:
                    break
        known = [self._known[model.name] for model in some]
        items = [Item(one.lots.penalty / one.until, model.bytes) for one, model in zip(known, some, strict=True)]
        return [Victim(some[place].name, some[place].may_go()) for place in least_set(items, need)]

    def _pieces(self, view: MemoryView, need: int, now: float) -> list[Victim]:
        """Look at the lots of ever more models until they are enough, and with tails until nothing else is cheaper."""
        models, size = self._queue.ascending(view.evictable, now), 0
        offers: list[Offer] = []
        going: list[Victim] = []
        dearest = inf
        while some := list(islice(models, AT_ONCE)):
            if going and self._importance(some[0], now) >= dearest:
                break
            for model in some:
                known = self._known[model.name]
                until = known.until
                offers += [(lot.seconds / until, model.name, model, lot) for lot in self._offered(model, known.lots)]
                size += model.bytes
            if size >= need:
                offers.sort(key=worth_of)
                going, dearest = enough(offers, need)
                if going and not (self._idle and self._tailed):
                    break
        return going

    def _importance(self, model: Held, now: float) -> float:
        """Return the worth of a byte of what would go first of it."""
        known = self._known.get(model.name)
        if known is None or known.lots.footprint is not model.footprint:
            known = self._know(model)
        known.until = until = self._until(model, now) if self._waiting else self._gaps.gap(model.name, now)
        for lot in self._offered(model, known.lots):
            if not model.resident.isdisjoint(lot.pieces) or (model.parts and lies_in(model, lot)):
                return lot.seconds / until
        return 0.0

    def _until(self, model: Held, now: float) -> float:
        """Return the seconds until a model is asked for next, as far as is known."""
        if not self._waiting:
            return self._gaps.gap(model.name, now)
        a_request = self._every.gap("", now)
        if model.waiting and model.place is not None:
            return a_request * (model.place + 1)
        return a_request * self._waiting + self._gaps.gap(model.name, now)

    def _offered(self, model: Held, lots: Lots) -> list[Lot]:
        """Return the lots of a model; the tail of one that is loaded is not apart, for it comes behind all the rest."""
        return lots.idle if self._idle and model is not self._wanted else lots.lots

    def _lots_of(self, model: Held) -> Lots:
        known = self._known.get(model.name)
        return (known if known is not None and known.lots.footprint is model.footprint else self._know(model)).lots

    def _know(self, model: Held) -> "_Known":
        known = self._known[model.name] = _Known(lots_of(model.footprint, trims=self._trims))
        self._tailed = self._tailed or known.lots.tailed
        return known


@dataclass(slots=True)
class _Known:
    """What a model consists of, and the seconds until it is asked for next, as of the last time it was scored."""

    lots: Lots
    until: float = inf


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
