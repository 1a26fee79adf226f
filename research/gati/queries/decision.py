"""Measures what picking a model takes: while nothing changes, and when changed waits require new plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from latebind.domain.costs import Outlook
from latebind.domain.query import PlannerConfig
from latebind.queries import make_planner
from latebind.queries.branches import Branches
from latebind.queries.view import PlanView
from research.gati.queries.simulated import EVERY_NODE
from research.gati.queries.traffic import FACES, OBJECTS, VEHICLES, WAYS, Traffic, application

PICKS = 500
LEFT = 0.080  # seconds
WAIT = 0.050  # seconds that come and go
SEEN = 100  # queries whose conditions are known


@dataclass(frozen=True, slots=True)
class Decision:
    """The median seconds of a pick of one planner: for the gate, for what follows, and for the gate with new waits."""

    planner: str
    gate: float
    behind: float
    renewed: float


def decision(name: str) -> Decision:
    """Time a planner on the traffic application."""
    calm = Traffic().outlooks(caches=True)
    waiting = {model: Outlook(WAIT, outlook.ends, outlook.chances) for model, outlook in calm.items()}
    gate, behind = (_seconds(name, node, (calm,)) for node in (OBJECTS, FACES))
    return Decision(name, gate, behind, _seconds(name, OBJECTS, (calm, waiting)))


def _seconds(name: str, node: int, outlooks: tuple[Mapping[str, Outlook], ...]) -> float:
    config = PlannerConfig(name)
    planner, query, branches = make_planner(config), application(config), Branches()
    for i in range(SEEN):
        branches.observe((FACES, VEHICLES), WAYS[i % len(WAYS)])
    took = []
    for i in range(PICKS):
        opened = frozenset(EVERY_NODE if node == OBJECTS else (node,))
        view = PlanView(query, opened, LEFT, outlooks[i % len(outlooks)].__getitem__, branches, LEFT)
        began = perf_counter()
        planner.pick(view, node)
        took.append(perf_counter() - began)
    return median(took)
