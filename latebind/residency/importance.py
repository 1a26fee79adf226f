"""The importance of a model in memory, and a queue of models by importance (mCache, sections 4.3.2 and 4.3.3)."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Generic, TypeVar

from latebind.residency.memory import ModelState

Score = Callable[[ModelState, float], float]

FEW = 64  # up to this number of models, all are scored afresh at each decision
LOWEST = 2  # of more models, at least this number of the lowest
SLICE = 1  # models of the shadow queue that are scored at each load


def utility(penalty: float, size: float, gap: float) -> float:
    """Return the seconds that it takes to load a byte again, per second until it is needed (equation 1)."""
    return penalty / (max(size, 1.0) * gap)


Key = TypeVar("Key", float, tuple[float, int])


class Ranking(Generic[Key]):
    """Names in the order of their keys, the lowest first; of equal keys in alphabetical order. Keys change one by one.

    A sorted list rather than a heap: models that may not be evicted are skipped without being removed and inserted
    again, and no stale entries stay behind. With 10,000 names a change moves 80 kB in memory, about 3 us.
    """

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._order: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._order)

    def items(self) -> Iterator[tuple[Key, str]]:
        """Iterate over keys and names, the lowest key first."""
        return iter(self._order)

    def put(self, name: str, key: Key) -> None:
        """Insert `name` with this key, or change its key."""
        if name in self._keys:
            self.remove(name)
        self._keys[name] = key
        insort(self._order, (key, name))

    def remove(self, name: str) -> Key:
        """Remove `name` and return its key; raises `KeyError` if it is not here."""
        key = self._keys.pop(name)
        del self._order[bisect_left(self._order, (key, name))]
        return key


class ImportanceQueue:
    """Models in memory in the order of their scores, as of the last time each was scored.

    Where the score is utility, this is also the order of the paper's rank (equation 2), the logarithm of the number of
    models that are worth less. A rank changes whenever any model's does, a utility only with its own model.

    Scores change as time passes. Therefore a shadow queue is scored again, a slice at each load, and replaces the queue
    once it is complete (section 4.3.3). Candidates are scored afresh as well: all models if there are few.
    """

    def __init__(self, score: Score) -> None:
        self._score = score
        self._models: dict[str, ModelState] = {}
        self._queue = Ranking[float]()
        self._shadow = Ranking[float]()
        self._unscored: list[str] = []
        self._risen: list[tuple[str, float]] = []  # models whose score turned out higher than the queue has it

    def __contains__(self, model: ModelState) -> bool:
        return model.name in self._models

    def put(self, model: ModelState, now: float) -> None:
        """Insert a model, or move it if its score has changed."""
        self._models[model.name] = model
        score = self._score(model, now)
        self._queue.put(model.name, score)
        if len(self._models) > FEW:
            self._shadow.put(model.name, score)

    def remove(self, model: ModelState) -> None:
        """Remove a model that is in the queue."""
        del self._models[model.name]
        self._queue.remove(model.name)
        if model.name in self._shadow:
            self._shadow.remove(model.name)

    def tidy(self, now: float) -> None:
        """Move models whose score has risen, and score a slice of the shadow. Not while `ascending` is iterated."""
        if len(self._models) <= FEW:
            return
        for name, score in self._risen:
            if name in self._models:
                self._queue.put(name, score)
        self._risen.clear()
        self._rescore(now)

    def ascending(self, among: Mapping[str, ModelState], now: float) -> Iterator[ModelState]:
        """Iterate over those models of the queue that are in `among`, the lowest score first."""
        if len(self._models) <= FEW:
            scored = sorted([(self._score(model, now), name) for name in self._queue if (model := among.get(name))])
            return (among[name] for _, name in scored)
        return self._lazily(among, now)

    def _lazily(self, among: Mapping[str, ModelState], now: float) -> Iterator[ModelState]:
        """Score afresh only what may come next. The order is exact if no score has fallen since it was queued."""
        scored, models, score_of = 0, self._models, self._score
        fresh: list[tuple[float, str, ModelState]] = []
        for queued_score, name in self._queue.items():
            while scored >= LOWEST and fresh and fresh[0][0] <= queued_score:
                yield heappop(fresh)[2]
            if name in among:
                model = models[name]
                score = score_of(model, now)
                if score > queued_score:  # the piece that was worth least has been evicted in the meantime
                    self._risen.append((name, score))
                heappush(fresh, (score, name, model))
                scored += 1
        yield from (model for _, _, model in sorted(fresh))

    def _rescore(self, now: float) -> None:
        """Score a slice of the shadow queue; let it replace the queue when it is complete."""
        for _ in range(SLICE):
            if not self._unscored:
                if len(self._shadow) == len(self._models):
                    self._queue = self._shadow
                self._shadow, self._unscored = Ranking(), list(self._models)
            name = self._unscored.pop()
            if name in self._models and name not in self._shadow:
                self._shadow.put(name, self._score(self._models[name], now))


class ByImportance(ABC):
    """Base of the policies that keep models in an `ImportanceQueue`."""

    def __init__(self) -> None:
        self._queue = ImportanceQueue(self._importance)

    @abstractmethod
    def _importance(self, model: ModelState, now: float) -> float:
        """Return the score of a model: the lowest is evicted first."""

    def worth(self, model: ModelState, now: float) -> float:
        """Return what a byte of a model is worth now; by default its score."""
        return self._importance(model, now)

    def gain(self, model: ModelState, now: float) -> float:
        """Return what a byte of a model would be worth if all of it were in memory."""
        return self._importance(model, now)

    def requested(self, model: ModelState, now: float) -> None:
        """Update its score if all of it is in memory; a model that is there in part is scored once it is loaded."""
        if not model.missing_stages and model in self._queue:
            self._queue.put(model, now)

    def loaded(self, model: ModelState, now: float) -> None:
        """Insert it into the queue (algorithm 1, line 18)."""
        self._queue.put(model, now)
        self._queue.tidy(now)

    def evicted(self, model: ModelState, now: float) -> None:
        """Remove it from the queue (line 15)."""
        del now
        self._queue.remove(model)
