"""The eviction policies that mCache is compared with (section 6.3), IAM, and policies that know the future.

All evict whole models. Those with `foretell` are told the times of all requests, which only a simulation knows.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Protocol, runtime_checkable

from latebind.domain.config import ResidencyConfig
from latebind.residency.importance import ByImportance, Ranking, utility
from latebind.residency.late import Late
from latebind.residency.memory import ModelState
from latebind.residency.policy import MemoryView, Victim, first_whole, may_evict_whole
from latebind.residency.rates import SHORTEST

Times = Mapping[str, Sequence[float]]
"""The times of all requests for each model, past and future, in seconds, ascending."""

KEPT = 64  # requests of one model that a window remembers: more say nothing more about its rate


@runtime_checkable
class Oracle(Protocol):
    """A policy that knows future requests."""

    def foretell(self, times: Times) -> None:
        """Take the times of all requests."""


def next_use(times: Times, model: ModelState, now: float) -> float:
    """Return the time of the oldest request that waits for a model, else of its next request, else infinity."""
    of_model = times.get(model.name, ())
    place = bisect_right(of_model, now) - model.waiting
    return of_model[place] if place < len(of_model) else inf


class Iam(ByImportance):
    """IAM, importance-aware models (mCache, algorithm 1): the least important go first.

    The time to the next request is the inverse of the rate over the last `window` seconds, or the time since the last
    request if that is longer.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__()
        self._window = config.window
        self._times: dict[str, deque[float]] = {}
        self._started: float | None = None

    def requested(self, model: ModelState, now: float) -> None:
        """Remember the time."""
        if self._started is None:
            self._started = now
        self._times.setdefault(model.name, deque(maxlen=KEPT)).append(now)
        super().requested(model, now)

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take the least important models until they free enough (lines 11 to 16)."""
        return first_whole(self._queue.ascending(view.evictable, now), view, need, wanted)

    def _importance(self, model: ModelState, now: float) -> float:
        return utility(model.footprint.penalty, model.footprint.size, self._gap(model, now))

    def _gap(self, model: ModelState, now: float) -> float:
        times = self._times.get(model.name)
        if times is None or self._started is None:
            return self._window
        since = now - times[-1]
        while len(times) > 1 and now - times[0] > self._window:
            times.popleft()
        span = now - times[0] if len(times) == KEPT else min(self._window, now - self._started)
        return max(span / len(times), since, SHORTEST)


class IamOracle(Iam):
    """IAM that knows future requests, as in section 6.3.1."""

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__(config)
        self._future: Times = {}

    def foretell(self, times: Times) -> None:
        """Take the times of all requests."""
        self._future = times

    def _gap(self, model: ModelState, now: float) -> float:
        return max(next_use(self._future, model, now) - now, SHORTEST)


class Belady(IamOracle):
    """Belady's MIN for models (IBM Systems Journal 5, 1966): what is requested latest goes first.

    It has the fewest misses where all models are of one size, and is no optimum where they are not.
    """

    def _importance(self, model: ModelState, now: float) -> float:
        return -next_use(self._future, model, now)


class LateOracle(Late):
    """`late` that is told the mean rate of each model, but never when requests come.

    Where requests are independent of earlier ones, nobody without foreknowledge can know more, so its result is a
    bound. Where rates change, a policy that follows them can be better.
    """

    def foretell(self, times: Times) -> None:
        """Take the times of all requests; only their rate is used."""
        merged = sorted([time for of_model in times.values() for time in of_model])
        span = max(merged[-1] - merged[0], SHORTEST) if merged else 0.0
        self._gaps = _KnownGaps({name: span / len(of_model) for name, of_model in times.items() if of_model})


class _KnownGaps:
    def __init__(self, gaps: Mapping[str, float]) -> None:
        self._known = gaps

    def observe(self, name: str, now: float) -> None:
        pass

    def gap(self, name: str, now: float) -> float:
        del now
        return self._known.get(name, inf)


class _Ranked:
    """Models in memory in the order of a priority that only requests change, not time, the lowest first."""

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        del config
        self._counts: Counter[str] = Counter()  # of requests, also for absent models
        self._ranking = Ranking[tuple[float, int]]()
        self._models: dict[str, ModelState] = {}
        self._puts = 0

    def put(self, model: ModelState, priority: float) -> None:
        """Insert a model behind those of equal priority, or change its priority."""
        self._puts += 1
        self._models[model.name] = model
        self._ranking.put(model.name, (priority, self._puts))

    def take_out(self, model: ModelState) -> float:
        """Remove a model that is there; return its priority."""
        del self._models[model.name]
        return self._ranking.remove(model.name)[0]

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        """Take models from the lowest priority."""
        del now
        return first_whole((self._models[name] for name in self._ranking), view, need, wanted)


class Lfu(_Ranked):
    """LFU, least frequently used: the model with the fewest requests goes first. Counts of absent models are kept."""

    def requested(self, model: ModelState, now: float) -> None:
        """Count it."""
        self._counts[model.name] += 1
        if model.name in self._models:
            self.loaded(model, now)

    def loaded(self, model: ModelState, now: float) -> None:
        """Rank it by its count."""
        del now
        self.put(model, self._counts[model.name])

    def evicted(self, model: ModelState, now: float) -> None:
        """Keep only its count."""
        del now
        self.take_out(model)


class Gdsf(Lfu):
    """GDSF, Greedy-Dual-Size-Frequency (Cherkasova, HP Labs HPL-98-69, 1998), with which FaasCache keeps functions.

    Evicts by frequency x cost / size, plus an inflation, the priority of the last victim so far. A model's inflation is
    that of its last use.
    """

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__(config)
        self._inflation = 0.0  # L of the paper

    def loaded(self, model: ModelState, now: float) -> None:
        """Give it a new priority."""
        del now
        density = utility(model.footprint.penalty, model.footprint.size, 1.0)
        self.put(model, self._inflation + self._counts[model.name] * density)

    def evicted(self, model: ModelState, now: float) -> None:
        """Raise the inflation to the priority of the victim."""
        del now
        self._inflation = max(self._inflation, self.take_out(model))


class Srrip(_Ranked):
    """SRRIP, static re-reference interval prediction (Jaleel et al., ISCA 2010, section 4): hit priority, two bits.

    A model with a distant prediction goes; where there is none, all age until there is. Ageing is one addition to a
    common age: a model is ranked by the age at which its prediction becomes distant. Among distant models the paper
    takes the first in the set; this takes the one that was used longest ago.
    """

    DISTANT, LONG, SOON = 3, 2, 0  # predictions: the highest, that of a model just loaded, and of one requested again

    def __init__(self, config: ResidencyConfig) -> None:
        super().__init__(config)
        self._age = 0.0

    def requested(self, model: ModelState, now: float) -> None:
        """Predict that it is requested again soon, if it is in memory."""
        del now
        if model.name in self._models:
            self.put(model, self._age + self.DISTANT - self.SOON)

    def loaded(self, model: ModelState, now: float) -> None:
        """Predict that it is not requested again for a long time."""
        del now
        if model.name not in self._models:
            self.put(model, self._age + self.DISTANT - self.LONG)

    def evicted(self, model: ModelState, now: float) -> None:
        """Age all models until the prediction of this one is distant."""
        del now
        self._age = max(self._age, self.take_out(model))


class _RecencyList:
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
    """ARC, adaptive replacement (Megiddo and Modha, FAST 2003, figure 4), in bytes: for models of any size, not pages.

    It has two lists of models in memory: requested once (T1), and more often (T2).

    Each has a ghost list of the models evicted from it (B1, B2). A request for a model in B1 raises the target size of
    T1 in bytes (p); one for a model in B2 lowers it.
    """

    whole = True

    def __init__(self, config: ResidencyConfig) -> None:
        self._budget = config.budget
        self._target = 0.0
        self._once, self._often = _RecencyList(), _RecencyList()
        self._ghosts_once, self._ghosts_often = _RecencyList(), _RecencyList()
        self._coming: dict[str, _RecencyList] = {}  # the list that a requested model joins once it is loaded
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
