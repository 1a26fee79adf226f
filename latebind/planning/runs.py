"""Simulated runs in several processes: runs each once, keeps the figures, and reports progress."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat

from latebind.planning.figures import Figures, figures_of
from latebind.planning.question import Question, Run, fleet_of
from latebind.planning.ways import placer
from latebind.simulation.cluster.fleet import Requests
from latebind.simulation.cluster.play import play

Progress = Callable[[str, float], None]
KEPT = 4  # drawn traffics that are kept, because neighbouring runs have the same seeds


class Player:
    """Simulates runs of one question, one after another."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._drawn: OrderedDict[tuple[int, float], Requests] = OrderedDict()

    def figures(self, run: Run, target: float) -> Figures:
        """Return the figures of a run, which is stopped where less than `target` of its requests can be in time."""
        question, way = self._question, run.offer.way
        fleet = fleet_of(question, run)
        requests = self._requests(run.seed, run.change.traffic)
        most_late = (1.0 - target) * int((requests.times >= question.warm).sum())
        played = play(
            fleet,
            requests,
            router=way.router,
            placer=placer(way),
            period=question.period,
            seed=run.seed,
            warm=question.warm,
            most_late=most_late,
        )
        return figures_of(fleet, played, warm=question.warm)

    def _requests(self, seed: int, scale: float) -> Requests:
        if (seed, scale) not in self._drawn:
            self._drawn[seed, scale] = self._question.traffic.requests(seed=seed, scale=scale)
            while len(self._drawn) > KEPT:
                self._drawn.popitem(last=False)
        return self._drawn[seed, scale]


class Runs:
    """Plays runs of one question and keeps their figures."""

    def __init__(self, pool: ProcessPoolExecutor, tell: Progress) -> None:
        self.figures: dict[Run, Figures] = {}
        self._pool, self._tell = pool, tell
        self._share = 0.0
        self._stopped: dict[Run, float] = {}  # the target of each run

    def play(self, runs: Sequence[Run], doing: str, left: int, *, target: float = 0.0) -> list[Figures]:
        """Return the figures of runs, in their order; `left` is about the number of runs that will follow.

        A run is stopped as soon as less than `target` of its requests can be in time.
        """
        missing = [run for run in dict.fromkeys(runs) if not self._knows(run, target)]
        found_of = self._pool.map(_played, missing, repeat(target))
        for place, (run, found) in enumerate(zip(missing, found_of, strict=True), 1):
            self.figures[run], self._stopped[run] = found, target
            done = len(self.figures)
            self._share = max(self._share, done / (done + len(missing) - place + left))
            self._tell(doing, self._share)
        return [self.figures[run] for run in runs]

    def _knows(self, run: Run, target: float) -> bool:
        """Tell whether a run was played to its end, or stopped where less than `target` could be in time."""
        found = self.figures.get(run)
        return found is not None and (found.complete or self._stopped[run] <= target)


@contextmanager
def playing(question: Question, tell: Progress, processes: int = 0) -> Iterator[Runs]:
    """Start processes for the runs of a question: `processes` of them; 0: one for each core."""
    most = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(most, initializer=_ready, initargs=(question,)) as pool:
        yield Runs(pool, tell)


# In each process of the pool. The question is passed once, because it may have thousands of models.
_here: list[Player] = []


def _ready(question: Question) -> None:
    _here.append(Player(question))


def _played(run: Run, target: float) -> Figures:
    return _here[0].figures(run, target)
