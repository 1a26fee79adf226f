"""Placement by importance with `late` memories against the usual ways: goodput at equal machines, and the reverse.

The whole trace is played and its second half counts, so a side that learns has only seen the past. All sides get the
same requests, seed by seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from msgspec import structs

from latebind.bench.statistics import Interval, ratio_of_means
from latebind.cluster.routing import Router
from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.planning.plan import PROBES, fewest
from latebind.planning.question import Offer, Question, Run, Way, served_router
from latebind.planning.runs import Figures, Runs
from latebind.simulation.cluster.fleet import MachineKind
from latebind.simulation.cluster.traffic import MINUTE
from research.cluster.routers import RULES, RandomHomes, Usual
from research.cluster.scenes import Shape, Traced
from research.mcache.traces import Service

ROOMY = 1 << 40


def _either(residency: str, router: Callable[[], Router] = served_router, name: str = "") -> tuple[Way, Way]:
    """Return a way with and without shedding: each side gets whichever is better for it."""
    shedding = Way(residency, router=router, name=name)
    return shedding, replace(shedding, sheds=False)


def _homes(count: int) -> Router:
    """Return our router with homes by chance."""
    return Router(placement=RandomHomes(count))


OURS = _either("late")
USUAL = tuple(way for name, rule in RULES.items() for way in _either("lru", partial(Usual, rule), name))
RANDOM_HOMES = tuple(way for n in (1, 2, 4) for way in _either("lru", partial(_homes, n), f"random-{n}"))
PARTLY = (*_either("lru"), *_either("late", partial(_homes, 0), "no homes"))  # one thing of ours at a time
SIDES: Mapping[str, tuple[Way, ...]] = {
    "ours": OURS,
    "usual": USUAL,
    "random homes, our router": RANDOM_HOMES,
    "ours in part": PARTLY,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played: `load` is the share of the machines' time that requests take without batches, on average.

    Answers of the median model are due in one second; it runs for 0.1 s and loads for 4. Of the trace the first
    `minutes` are played, all of them where that is 0.
    """

    machines: int = 20
    models: int = 200
    load: float = 0.5
    seeds: int = 5
    minutes: int = 0
    shape: Shape = field(default_factory=Shape)


@dataclass(frozen=True, slots=True)
class Contest:
    """Figures of every way by the share of memory: all machines together, of what the models take once.

    `fewer` are the machines with which ours does as well as the best of the usual ways, by share and seed.
    """

    machines: int
    figures: Mapping[float, Mapping[Way, tuple[Figures, ...]]]
    fewer: Mapping[float, tuple[int, ...]]

    def best(self, share: float, side: str) -> Way:
        """Return the way of a side with the most in time."""
        return max(SIDES[side], key=lambda way: _in_time(self.figures[share][way]).mean())

    def gain(self, share: float, side: str = "usual") -> Interval:
        """Return how many times the goodput of a side ours is, each at its best, paired by seed."""
        ours, other = (self.figures[share][self.best(share, one)] for one in ("ours", side))
        return ratio_of_means(_in_time(ours), _in_time(other))

    def machines_saved(self, share: float) -> Interval:
        """Return which share of the machines ours does without at the goodput of the best usual way."""
        fewer = np.array(self.fewer[share], dtype=np.float64)
        ratio = ratio_of_means(fewer, np.full_like(fewer, self.machines))
        return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def contest(question: Question, runs: Runs, shares: Sequence[float], machines: int) -> Contest:
    """Play all sides with each share of memory, then ours with ever fewer machines."""
    kinds = {share: _kind(question, share, machines) for share in shares}
    sides = _ways()
    cells = [(share, way, seed) for share in shares for way in sides for seed in range(question.seeds)]
    every = [Run(Offer(kinds[share], way), machines, seed) for share, way, seed in cells]
    runs.expected = len(every) + len(shares) * question.seeds * PROBES
    found = dict(zip(cells, runs.play(every, f"{machines} machines"), strict=True))
    figures = {
        share: {way: tuple([found[share, way, seed] for seed in range(question.seeds)]) for way in sides}
        for share in shares
    }
    played = Contest(machines, figures, {})
    return replace(played, fewer=_fewer(played, runs, kinds, question.seeds))


def _fewer(played: Contest, runs: Runs, kinds: Mapping[float, MachineKind], seeds: int) -> dict[float, tuple[int, ...]]:
    """Search the fewest machines with which ours has as much in time as the best usual way, for each share and seed."""
    needed = {
        (share, seed): some[played.best(share, "usual")][seed].in_time
        for share, some in played.figures.items()
        for seed in range(seeds)
    }

    ours = {share: played.best(share, "ours") for share in kinds}

    def enough(probes: Sequence[tuple[tuple[float, int], int]]) -> list[bool]:
        asked = [Run(Offer(kinds[share], ours[share]), machines, seed) for (share, seed), machines in probes]
        found = runs.play(asked, "fewer machines")
        return [one.in_time >= needed[cell] for one, (cell, _) in zip(found, probes, strict=True)]

    most = 2 * played.machines
    found = fewest(dict.fromkeys(needed, played.machines), enough, most=dict.fromkeys(needed, most))
    return {share: tuple([found[share, seed].high or most for seed in range(seeds)]) for share in kinds}


def _ways() -> tuple[Way, ...]:
    return tuple([way for ways in SIDES.values() for way in ways])


def _kind(question: Question, share: float, machines: int) -> MachineKind:
    total = sum(model.served.footprint.size for model in question.models)
    return structs.replace(question.kinds[0], memory=round(share * total / machines))


def _in_time(some: Sequence[Figures]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([one.in_time for one in some])


def asked(services: Sequence[Service], scene: Scene) -> Question:
    """Return the question that a scene puts: the second half of the trace counts."""
    models = scene.shape.models(scene.models, 0)
    alone = np.array([model.served.costs.remaining(0, 1) for model in models])
    traced = Traced(tuple(services), scene.models, scene.load * scene.machines / float(alone.mean()), scene.minutes)
    minutes = scene.minutes or len(services[0].counts)
    return Question(
        models,
        traced,
        (MachineKind("machine", ROOMY),),
        _ways(),
        PolicyConfig(),
        ResidencyConfig(),
        warm=minutes * MINUTE / 2,
        seeds=scene.seeds,
        most=2 * scene.machines,
    )
