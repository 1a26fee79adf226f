"""How busy the workers would be with all requests that arrive, of all models; whether they should share each batch."""

from dataclasses import dataclass
from math import inf, pow, sqrt

NEWEST = 0.01  # weight of the newest request in means; of the first ones, 1 / their number
FULL = 0.999  # no load of workers side by side counts as more: at 1 there is no mean wait
BELIEVED = 0.9  # the highest load of workers that take turns; behind a higher one it is not known whether they keep up


@dataclass(frozen=True, slots=True)
class Busy:
    """Work over the time of all workers: `alone` if requests run one by one, `batched` in the policy's batches."""

    alone: float
    batched: float


IDLE = Busy(0.0, 0.0)


class Load:
    """The recent work a second, exponentially weighted, for `workers` that run at a time."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._requests = 0
        self._gap = 0.0  # mean seconds between arrivals
        self._last = inf
        self._alone = self._batched = 0.0

    def add(self, now: float, alone: float, batched: float) -> None:
        """Note a request that takes so many seconds of a worker: alone, and its share of a batch."""
        if self._requests:
            self._gap += max(NEWEST, 1.0 / self._requests) * (now - self._last - self._gap)
        self._requests += 1
        self._last = now
        newest = max(NEWEST, 1.0 / self._requests)
        self._alone += newest * (alone - self._alone)
        self._batched += newest * (batched - self._batched)

    def at(self, now: float) -> Busy:
        """Return how busy the workers are, and no more than if the next request arrived now."""
        if self._requests < 2:
            return IDLE
        gap = self._gap
        if gap < now - self._last:
            gap += max(NEWEST, 1.0 / self._requests) * (now - self._last - gap)
        each = self.workers * gap
        return Busy(self._alone / each, self._batched / each) if each > 0.0 else Busy(inf, inf)


def shares_batches(alone: float, batched: float, workers: int, busy: Busy) -> bool:
    """Return whether one batch at a time on the cores of all `workers` answers sooner than a batch on each.

    On all cores a request takes the share `alone` of its time, and a batch the share `batched`. In units of what a
    request takes on its worker's own cores, requests take 1 plus the wait for one of n workers. That is
    P^(sqrt(2 (n + 1)) - 1) / 2n (1 - rho) where launches have a fixed length (Sakasegawa 1977): P is how busy workers
    are with requests one by one, and rho in batches, which bounds the queue. Who finds the workers idle has all cores
    anyway (`lone`). On all cores P and rho are n times the shares, and n is 1.
    """
    full = workers * batched * busy.batched
    if full >= BELIEVED:
        return False
    busy = Busy(min(FULL, busy.alone), min(FULL, busy.batched))
    beside = 1.0 + pow(busy.alone, sqrt(2.0 * (workers + 1)) - 1.0) / (2.0 * workers * (1.0 - busy.batched))
    beside -= (1.0 - alone) * (1.0 - busy.alone)
    return alone * (1.0 + min(1.0, workers * alone * busy.alone) / (2.0 * (1.0 - full))) < beside
