"""Simulated requests a second on one core: models of one stage and of twenty, compiled and by the scheduler itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from latebind.bench.cluster.scenes import Shape, Traced, requests_at
from latebind.bench.parallel import Progress
from latebind.bench.tables import Rows
from latebind.domain.config import ResidencyConfig
from latebind.planning.figures import figures_of
from latebind.planning.player import Players, play
from latebind.planning.ways import WAYS, Way
from latebind.simulation.cluster.fleet import Fleet, MachineKind, Requests
from latebind.simulation.traces import Service

MACHINES, MODELS, PERIOD = 100, 500, 10.0
BARS = {1: 300_000, 20: 30_000}
MEMORY = 16 * 10**9
LOAD = 0.5  # of what the machines carry without batches


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one player was: seconds of each round for so many requests."""

    stages: int
    player: Players
    way: Way
    machines: int
    requests: int
    seconds: tuple[float, ...]
    in_time: float

    @property
    def rate(self) -> float:
        """Requests a second, in the median round."""
        return self.requests / median(self.seconds)


def speeds(services: Sequence[Service], requests: int, rounds: int, tell: Progress) -> list[Speed]:
    """Play models of one stage and of twenty: so many requests compiled, else a hundredth on a tenth of machines."""
    cells = [(stages, player, way) for stages in BARS for player in Players for way in (WAYS[0], WAYS[-1])]
    found = []
    for place, (stages, player, way) in enumerate(cells):
        tell(f"{stages} stages, {player}", place / len(cells))
        count = requests if player is Players.COMPILED else max(1, requests // 100)
        found.append(speed(services, stages, player, way, count, rounds))
    return found


def speed(services: Sequence[Service], stages: int, player: Players, way: Way, requests: int, rounds: int) -> Speed:
    """Play about so many requests, after a short run that has everything compiled."""
    fleet, drawn = _scene(services, stages, requests, 1 if player is Players.COMPILED else 10)
    fleet = replace(fleet, residency=ResidencyConfig(policy=way.residency, stages=way.stages))
    play(fleet, _first(drawn, 100), way, PERIOD, 0, player)
    seconds, in_time = [], 0.0
    for _ in range(rounds):
        began = time.perf_counter()
        played = play(fleet, drawn, way, PERIOD, 0, player)
        seconds.append(time.perf_counter() - began)
        in_time = figures_of(fleet, played).in_time
    return Speed(stages, player, way, len(fleet.machines), len(drawn), tuple(seconds), in_time)


def speed_rows(found: Sequence[Speed]) -> Rows:
    """Return a row for each."""
    return [
        {
            "stages": one.stages,
            "player": str(one.player),
            "way": one.way.label,
            "machines": one.machines,
            "requests": one.requests,
            "in time": f"{one.in_time:.1%}",
            "simulated/s": f"{one.rate:.0f}",
            "slowest round": f"{one.requests / max(one.seconds):.0f}",
            "bar": BARS[one.stages] if one.player is Players.COMPILED else "",
        }
        for one in found
    ]


def _scene(services: Sequence[Service], stages: int, requests: int, part: int) -> tuple[Fleet, Requests]:
    shape = Shape(stages=stages, run=0.004, load=0.2, allowed=0.1)
    machines, models = MACHINES // part, MODELS // part
    fleet = Fleet((MachineKind("16 GB", MEMORY),) * machines, shape.models(models, 0))
    rates = Traced(tuple(services), models, 1.0).rates(0).sum(axis=1)
    alone = np.array([model.served.costs.remaining(0, 1) for model in fleet.models])
    shares = rates / rates.sum()
    lasts = requests * float(shares @ alone) / (LOAD * machines)
    random = np.random.default_rng(0)
    return fleet, requests_at(requests * shares[:, None], random, minute=lasts, stages=stages)


def _first(requests: Requests, count: int) -> Requests:
    return Requests(requests.times[:count], requests.models[:count], requests.leaves[:count])
