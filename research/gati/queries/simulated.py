"""Requests of the traffic application one after another, as in the paper: no queues, a planner picks every model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latebind.domain.query import NOT_RUN
from latebind.queries import make_planner
from latebind.queries.branches import Branches
from latebind.queries.view import PlanView
from research.gati.queries.sides import Side
from research.gati.queries.traffic import (
    FACES,
    OBJECTS,
    SHARES,
    TABLE_5,
    VEHICLES,
    WAYS,
    Traffic,
    application,
    model_name,
)

EVERY_NODE = frozenset((OBJECTS, FACES, VEHICLES))
ROUNDING = 1e-9  # seconds

Figures = NDArray[np.float64]
Picks = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Task:
    """So many requests due after `deadline` seconds. The same seed has the same requests on every side."""

    side: Side
    deadline: float
    traffic: Traffic
    requests: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What ran, a value for each request: seconds, whether it left its gate `early`, and by options who answered."""

    task: Task
    seconds: Figures
    early: NDArray[np.bool_]
    picks: Picks  # (requests, 3), NOT_RUN where a node was left out

    @property
    def late(self) -> NDArray[np.bool_]:
        """Whether each request ended after its deadline."""
        return self.seconds > self.task.deadline + ROUNDING

    def right(self, *, wrong: float = 0.0, in_time: bool = True) -> Figures:
        """Return for each request the chance that its models are all right, and in time.

        Of those that leave the gate early, the share `wrong` is so although the gate itself is right.
        """
        chances = np.where(self.early, 1.0 - wrong, 1.0)
        for step, models in enumerate(TABLE_5):
            accuracies = np.array([timed.accuracy for timed in models])
            ran = self.picks[:, step]
            chances = np.where(ran == NOT_RUN, chances, chances * accuracies[ran])
        return np.where(self.late, 0.0, chances) if in_time else chances


def run(task: Task) -> Result:
    """Run one task."""
    played = _Played(task)
    generator = np.random.default_rng(task.seed)
    kinds = np.searchsorted(np.cumsum(SHARES), generator.random(task.requests), side="right")
    draws = generator.random(task.requests)
    rows = [played.one(WAYS[kind], float(draw)) for kind, draw in zip(kinds, draws, strict=True)]
    seconds, early, picks = zip(*rows, strict=True)
    return Result(task, np.array(seconds), np.array(early), np.array(picks, np.int8))


class _Played:
    """One side: its planner, and the outcomes of conditions so far."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._planner = make_planner(task.side.planner)
        self._query = application(task.side.planner)
        self._branches = Branches()
        self._outlooks = task.traffic.outlooks(caches=task.side.caches)

    def one(self, way: tuple[bool, ...], draw: float) -> tuple[float, bool, list[int]]:
        """Return the seconds of a request on this path, whether it left early, and which models answered."""
        picks = [NOT_RUN] * len(EVERY_NODE)
        ahead = (OBJECTS,) if self._task.side.planner.replan else tuple(EVERY_NODE)
        planned = {node: self._pick(node, EVERY_NODE, self._task.deadline) for node in ahead}
        picks[OBJECTS] = planned[OBJECTS]
        seconds, early = self._gate(planned[OBJECTS], draw)
        self._branches.observe((FACES, VEHICLES), way)
        for node, holds in zip((FACES, VEHICLES), way, strict=True):
            if holds:
                left = self._task.deadline - seconds
                picks[node] = planned[node] if node in planned else self._pick(node, frozenset((node,)), left)
                seconds += TABLE_5[node][picks[node]].seconds
        return seconds, early, picks

    def _pick(self, node: int, opened: frozenset[int], left: float) -> int:
        allowed = self._task.deadline
        view = PlanView(self._query, opened, left, self._outlooks.__getitem__, self._branches, allowed)
        return self._planner.pick(view, node).option

    def _gate(self, option: int, draw: float) -> tuple[float, bool]:
        """Return when the gate is left, and whether that is early; the same draw is as easy for every gate."""
        outlook = self._outlooks[model_name(OBJECTS, option)]
        for end, chance in zip(outlook.ends[:-1], outlook.chances[:-1], strict=True):
            if draw < chance:
                return end, True
            draw -= chance
        return outlook.whole, False
