"""Simulated runs in several processes: runs each once, keeps the figures, and reports progress."""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from latebind.planning.figures import Figures, figures_of
from latebind.planning.player import get_ready, play
from latebind.planning.question import Question, Run, fleet_of, offers
from latebind.simulation.cluster.fleet import Requests

Progress = Callable[[str, float], None]
KEPT = 4  # drawn traffics that are kept, because neighbouring runs have the same seeds


class Player:
    """Simulates runs of one question, one after another."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._drawn: OrderedDict[tuple[int, float], Requests] = OrderedDict()

    def figures(self, run: Run) -> Figures:
        """Return the figures of a run."""
        question = self._question
        fleet = fleet_of(question, run)
        requests = self._requests(run.seed, run.change.traffic)
        return figures_of(fleet, play(fleet, requests, run.offer.way, question.period, run.seed), warm=question.warm)

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

    def play(self, runs: Sequence[Run], doing: str, left: int) -> list[Figures]:
        """Return the figures of runs, in their order; `left` is about the number of runs that will follow."""
        missing = [run for run in dict.fromkeys(runs) if run not in self.figures]
        for place, (run, found) in enumerate(zip(missing, self._pool.map(_played, missing), strict=True), 1):
            self.figures[run] = found
            done = len(self.figures)
            self._share = max(self._share, done / (done + len(missing) - place + left))
            self._tell(doing, self._share)
        return [self.figures[run] for run in runs]


@contextmanager
def playing(question: Question, tell: Progress, processes: int = 0) -> Iterator[Runs]:
    """Start processes for the runs of a question: `processes` of them; 0: one for each core."""
    most = processes or len(os.sched_getaffinity(0))
    tell("compiling, the first time", 0.0)
    first = offers(question)[0]
    get_ready(fleet_of(question, Run(first, 1, 0)), first.way)
    with ProcessPoolExecutor(most, initializer=_ready, initargs=(question,)) as pool:
        yield Runs(pool, tell)


# In each process of the pool. The question is passed once, because it may have thousands of models.
_here: list[Player] = []


def _ready(question: Question) -> None:
    _here.append(Player(question))


def _played(run: Run) -> Figures:
    return _here[0].figures(run)
