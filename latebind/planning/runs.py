"""Simulated runs in several processes: runs each once, keeps the figures, and reports progress."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from math import nan

import numpy as np

from latebind.domain.actions import Outcome
from latebind.planning.question import Question, Run, fleet_of
from latebind.planning.sampling import Sampling, sampling_of
from latebind.simulation.cluster.fleet import UNKNOWN, Fleet, Played, Requests
from latebind.simulation.cluster.play import play

Progress = Callable[[str, float], None]
KEPT = 4  # drawn traffics that are kept, because neighboring runs have the same seeds


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the requests that count: shares of 1, latencies in seconds, and goodput in requests per second.

    `in_time` and `answered` are shares of these requests. `mean`, `p50` and `p99` are latencies of answered ones, NaN
    if there are none. `busy` is the share of the time in which workers ran and `loads` the number of loads per second,
    both over the whole run. A run that was stopped early, because too many were late, is not `complete`: its other
    figures then mean nothing else.
    """

    requests: int
    in_time: float
    answered: float
    goodput: float
    mean: float
    p50: float
    p99: float
    busy: float
    loads: float
    complete: bool = True

    @property
    def late(self) -> float:
        """How many requests were not answered in time."""
        return self.requests * (1.0 - self.in_time)


def figures_of(fleet: Fleet, played: Played, *, warm: float = 0.0, share: float = 1.0) -> Figures:
    """Summarize a run. Requests that arrived before `warm` (seconds) do not count, because memory fills meanwhile.

    If the run has a `share` of the requests of a cluster, goodput and loads are those of the whole.
    """
    times = played.requests.times
    if not len(times):
        return Figures(0, nan, nan, 0.0, nan, nan, nan, 0.0, 0.0)
    counted = times >= warm
    allowed, span = np.array([model.allowed for model in fleet.models])[played.requests.models], float(times[-1])
    answered = (played.outcome == Outcome.ANSWERED) & counted
    right = (answered & (played.ended - times <= allowed))[counted]
    latencies = (played.ended - times)[answered]
    p50, p99 = np.quantile(latencies, [0.5, 0.99], method="inverted_cdf") if len(latencies) else (nan, nan)
    requests = int(counted.sum())
    ran = max(span, float(np.nanmax(played.ended, initial=0.0)))
    return Figures(
        requests,
        float(right.mean()) if requests else nan,
        len(latencies) / requests if requests else nan,
        float(right.sum()) / share / max(span - warm, 1e-9),
        float(latencies.mean()) if len(latencies) else nan,
        float(p50),
        float(p99),
        float(played.busy.sum()) / (ran * fleet.machines * fleet.kind.workers),
        played.loads / share / ran,
        not bool((played.outcome == UNKNOWN).any()),
    )


class Player:
    """Simulates runs of one question, one after another."""

    def __init__(self, question: Question, sampling: Sampling) -> None:
        self._question, self._sampling = question, sampling
        self._drawn = lru_cache(KEPT)(self._draw)

    def figures(self, run: Run, target: float) -> Figures:
        """Return the figures of a run, which is stopped once less than `target` of its requests can be in time."""
        question, requests, share = self._drawn(run.seed, run.change.traffic)
        fleet, warm = fleet_of(question, run), question.warm
        most_late = (1.0 - target) * int((requests.times >= warm).sum())
        played = play(fleet, requests, router=run.offer.way.router(), warm=warm, most_late=most_late)
        return figures_of(fleet, played, warm=warm, share=share)

    def _draw(self, seed: int, scale: float) -> tuple[Question, Requests, float]:
        """Return what a run plays, its requests, and the share of all requests that these are."""
        question = self._sampling.question(self._question, seed)
        part, whole = (float(one.population.rates.totals.sum()) for one in (question, self._question))
        return question, question.population.requests(seed=seed, scale=scale), part / whole


class Runs:
    """Plays runs of one question and keeps their figures. About as many as are `expected` will be played in all."""

    def __init__(self, pool: ProcessPoolExecutor, on_progress: Progress, sampling: Sampling) -> None:
        self.sampling = sampling
        self.expected = 0
        self._pool, self._on_progress = pool, on_progress
        self._figures: dict[Run, tuple[Figures, float]] = {}  # and the target of each run

    def play(self, runs: Sequence[Run], doing: str, *, target: float = 0.0) -> list[Figures]:
        """Return the figures of runs, in their order.

        A run is stopped as soon as less than `target` of its requests can be in time.
        """
        missing = []
        for run in dict.fromkeys(runs):
            known, stopped = self._figures.get(run, (None, 0.0))
            if known is None or not (known.complete or stopped <= target):
                missing.append(run)
        for run, found in zip(missing, self._pool.map(_played, missing, repeat(target)), strict=True):
            self._figures[run] = found, target
            self._on_progress(doing, min(0.99, len(self._figures) / max(1, self.expected)))
        return [self._figures[run][0] for run in runs]


@contextmanager
def playing(
    question: Question, on_progress: Progress, processes: int = 0, sampling: Sampling | None = None
) -> Iterator[Runs]:
    """Start processes for the runs of a question: `processes` of them; 0: one for each core.

    Without a `sampling`, the size of the question decides what is simulated.
    """
    most, sampling = processes or len(os.sched_getaffinity(0)), sampling or sampling_of(question)
    with ProcessPoolExecutor(most, initializer=_ready, initargs=(question, sampling)) as pool:
        try:
            yield Runs(pool, on_progress, sampling)
        except BaseException:
            for child in multiprocessing.active_children():  # else leaving the block waits for everything pending
                child.terminate()
            raise


# In each process of the pool. The question is passed once, because it may have thousands of models.
_here: list[Player] = []


def _ready(question: Question, sampling: Sampling) -> None:
    _here.append(Player(question, sampling))


def _played(run: Run, target: float) -> Figures:
    return _here[0].figures(run, target)
