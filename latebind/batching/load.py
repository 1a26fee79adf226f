"""How busy the workers would be with all requests that arrive, of all models; whether they should share each batch."""

from collections import deque
from dataclasses import dataclass
from math import fsum, inf, pow, sqrt

NEWEST = 0.01  # weight of the newest request in mean work; of the first ones, 1 / their number
GAPS = 64  # the latest gaps between arrivals that count
PAUSE = 16.0  # times their mean; a longer one counts as this: behind a pause, requests come as they did before
FULL = 0.999  # no load of workers side by side counts as more: at 1 there is no mean wait
SLOWED = 0.1  # share by which a request takes longer beside another one at least: they share caches and memory
COLD = 0.08  # share by which a request alone takes longer on all cores where others run on their worker's own
BELIEVED = 0.9  # the highest load of workers that take turns; behind a higher one it is not known whether they keep up


@dataclass(frozen=True, slots=True)
class Busy:
    """Work over the time of all workers: `alone` if requests run one by one, `batched` in the policy's largest batches.

    `more` is what each request adds to a batch that runs anyway.
    """

    alone: float
    batched: float
    more: float


IDLE = Busy(0.0, 0.0, 0.0)


class Load:
    """The recent work a second for `workers` that run at a time."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._requests = 0
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._gap = 0.0  # their mean, in seconds
        self._last = inf
        self._alone = self._batched = self._more = 0.0

    def add(self, now: float, alone: float, batched: float, most: int) -> None:
        """Note a request that takes so many seconds of a worker: alone, and its share of a batch of `most`."""
        if self._requests:
            self._gaps.append(self._counted(now - self._last))
            self._gap = fsum(self._gaps) / len(self._gaps)
        self._requests += 1
        self._last = now
        newest = max(NEWEST, 1.0 / self._requests)
        more = max(0.0, most * batched - alone) / (most - 1) if most > 1 else alone
        self._alone += newest * (alone - self._alone)
        self._batched += newest * (batched - self._batched)
        self._more += newest * (more - self._more)

    def at(self, now: float) -> Busy:
        """Return how busy the workers are, and no more than if the next request arrived now."""
        if not self._gaps:
            return IDLE
        more = self._counted(now - self._last) - self._gap
        each = self.workers * (self._gap + max(0.0, more) / (len(self._gaps) + 1))
        if each <= 0.0:
            return Busy(inf, inf, inf)
        return Busy(self._alone / each, self._batched / each, self._more / each)

    def _counted(self, gap: float) -> float:
        return min(gap, PAUSE * self._gap) if self._gap > 0.0 else gap


def shares_batches(alone: float, batched: float, workers: int, busy: Busy) -> bool:
    """Return whether one batch at a time on the cores of all `workers` answers sooner than a batch on each.

    On all cores a request takes the share `alone` of its time, and a batch the share `batched`. Who finds the workers
    idle has all cores anyway (`lone`), but the caches hold other weights there if others run on their worker's own
    cores: these are compiled apart (decision 101).
    """
    full = workers * batched * busy.batched
    if full >= BELIEVED or busy.alone <= 0.0:
        return False
    batch, more = busy.batched / busy.alone, busy.more / busy.alone
    in_turn = mean_seconds(alone, batched * batch, batched * more, 1, workers * alone * busy.alone)
    beside = mean_seconds(1.0, batch, more, workers, busy.alone)
    others = min(1.0, busy.alone)
    gained = max(0.0, 1.0 - (1.0 + COLD) * alone)
    return in_turn < beside + SLOWED * others - gained * (1.0 - others)


def mean_seconds(alone: float, batched: float, more: float, workers: int, busy: float) -> float:
    """Return about how long requests take that find `workers` so `busy`, were they to run one by one.

    A request alone takes `alone`, its share of the largest batch is `batched`, and each one more in a batch takes
    `more`. While a batch runs, the next one gathers: a launch takes c = fixed + more * (those that came within c), or
    `alone` if hardly any comes. A request waits for the first of n workers to be through, c / 2n if all run, and then c
    itself. What is too much for the largest batch waits for a further one. Where batches save nothing this is the mean
    wait of a queue for n workers whose work has a fixed length (Sakasegawa 1977).
    """
    full, adding = min(FULL, busy * batched / alone), min(FULL, busy * more / alone)
    power = sqrt(2.0 * (workers + 1)) - 1.0
    launch = max(alone, (alone - more) / (1.0 - adding))
    all_run = pow(min(1.0, busy), power)
    beyond = batched * pow(full, power) * full / (2.0 * workers * (1.0 - full))
    return launch * (1.0 + all_run / (2.0 * workers)) + beyond
