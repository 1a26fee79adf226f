"""Plays requests to a fleet: by the compiled simulation where that covers the fleet, else by the scheduler itself."""

from dataclasses import replace
from enum import StrEnum

import numpy as np

from latebind.domain.errors import ConfigError
from latebind.planning.ways import Way, placer
from latebind.simulation.cluster import exact
from latebind.simulation.cluster.compiled.covered import require_covered
from latebind.simulation.cluster.fleet import Fleet, Played, Requests


class Players(StrEnum):
    """Two players with the same results; `compiled` is some hundred times as fast and does not cover everything."""

    COMPILED = "compiled"
    EXACT = "exact"


def play(fleet: Fleet, requests: Requests, way: Way, period: float, seed: int, player: Players | None = None) -> Played:
    """Play requests; where no player is named, by the compiled one if that covers it."""
    if player is None:
        player = Players.EXACT if not_covered(fleet, way) else Players.COMPILED
    if player is Players.EXACT:
        return exact.play(fleet, requests, router=way.router, placer=placer(way), period=period, seed=seed)
    from latebind.simulation.cluster.compiled.run import play as compiled  # numba is slow to import

    return compiled(fleet, requests, router=way.router, placer=placer(way), period=period, seed=seed)


def get_ready(fleet: Fleet, way: Way) -> None:
    """Compile everything, or read what was compiled before, so that processes forked from this one have it."""
    one = replace(fleet, machines=fleet.machines[:1], faults=())
    play(one, Requests(np.array([0.0]), np.zeros(1, np.int32), np.zeros(1, np.int16)), way, 60.0, 0)


def not_covered(fleet: Fleet, way: Way) -> str:
    """Return why the compiled player does not cover this; an empty string where it does."""
    kinds = tuple(dict.fromkeys(fleet.machines))
    try:
        require_covered(replace(fleet, machines=kinds), way.router)
    except ConfigError as error:
        return str(error)
    return ""
