"""What it is worth that a model is in memory, and the queue of who is worth least (mCache, sections 4.3.2 and 3)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush

from latebind.residency.held import Held
from latebind.residency.ranking import Ranking

Score = Callable[[Held, float], float]

FEW = 64  # so many models are all scored afresh
LOWEST = 2  # of more, so many of those that were lowest
SLICE = 1  # models of the shadow that are scored when something has come


def utility(penalty: float, size: float, gap: float) -> float:
    """Return the seconds to load a byte again, by the seconds until then (equation 1)."""
    return penalty / (max(size, 1.0) * gap)


class ImportanceQueue:
    """Models in memory in the order of their score as it was when it was last told.

    Where that is utility, it is also the order of the paper's rank (equation 2), the logarithm of how many are worth
    less: a rank changes with every other model's, a utility alone.

    Scores change with time alone. A shadow is scored anew, a slice at each load, and takes the place of the queue once
    it is complete (section 4.3.3); and those that are looked at are scored afresh, all where there are few.
    """

    def __init__(self, score: Score) -> None:
        self._score = score
        self._models: dict[str, Held] = {}
        self._queue = Ranking[float]()
        self._shadow = Ranking[float]()
        self._unscored: list[str] = []
        self._risen: list[tuple[str, float]] = []  # models that were found in front of their place

    def __contains__(self, model: Held) -> bool:
        return model.name in self._models

    def put(self, model: Held, now: float) -> None:
        """Take in a model, or one whose score has changed."""
        self._models[model.name] = model
        score = self._score(model, now)
        self._queue.put(model.name, score)
        if len(self._models) > FEW:
            self._shadow.put(model.name, score)

    def remove(self, model: Held) -> None:
        """Let a model go that is there."""
        del self._models[model.name]
        self._queue.remove(model.name)
        if model.name in self._shadow:
            self._shadow.remove(model.name)

    def tidy(self, now: float) -> None:
        """Put models in their place that were found in front of it, and score a slice anew. Not while one is chosen."""
        if len(self._models) <= FEW:
            return
        for name, score in self._risen:
            if name in self._models:
                self._queue.put(name, score)
        self._risen.clear()
        self._rescore(now)

    def ascending(self, among: Mapping[str, Held], now: float) -> Iterator[Held]:
        """Go through models that are `among` those given, from the lowest score."""
        if len(self._models) <= FEW:
            scored = sorted([(self._score(model, now), name) for name in self._queue if (model := among.get(name))])
            return (among[name] for _, name in scored)
        return self._lazily(among, now)

    def _lazily(self, among: Mapping[str, Held], now: float) -> Iterator[Held]:
        """Score afresh only what may come next: the order is exact where no score has fallen since it was told."""
        looked, models, score_of = 0, self._models, self._score
        fresh: list[tuple[float, str, Held]] = []
        for told, name in self._queue.items():
            while looked >= LOWEST and fresh and fresh[0][0] <= told:
                yield heappop(fresh)[2]
            if name in among:
                model = models[name]
                score = score_of(model, now)
                if score > told:  # what was worth least of it has gone since
                    self._risen.append((name, score))
                heappush(fresh, (score, name, model))
                looked += 1
        yield from (model for _, _, model in sorted(fresh))

    def _rescore(self, now: float) -> None:
        """Score a slice of the shadow; put it in the place of the queue when nothing is missing."""
        for _ in range(SLICE):
            if not self._unscored:
                if len(self._shadow) == len(self._models):
                    self._queue = self._shadow
                self._shadow, self._unscored = Ranking(), list(self._models)
            name = self._unscored.pop()
            if name in self._models and name not in self._shadow:
                self._shadow.put(name, self._score(self._models[name], now))


class ByImportance(ABC):
    """What policies have in common that keep models in such a queue."""

    def __init__(self) -> None:
        self._queue = ImportanceQueue(self._importance)

    @abstractmethod
    def _importance(self, model: Held, now: float) -> float:
        """Return the score of a model: the lowest goes first."""

    def worth(self, model: Held, now: float) -> float:
        """Return the score of a model, for somebody to look at."""
        return self._importance(model, now)

    def gain(self, model: Held, now: float) -> float:
        """Return what a byte of a model would be worth if all of it were in memory."""
        return self._importance(model, now)

    def requested(self, model: Held, now: float) -> None:
        """Score it anew where it is in memory; what is there in part is scored once it has been loaded."""
        if not model.lacks and model in self._queue:
            self._queue.put(model, now)

    def loaded(self, model: Held, now: float) -> None:
        """Insert it into the queue (algorithm 1, line 18)."""
        self._queue.put(model, now)
        self._queue.tidy(now)

    def evicted(self, model: Held, now: float) -> None:
        """What is gone is out of the queue (line 15)."""
        del now
        self._queue.remove(model)
