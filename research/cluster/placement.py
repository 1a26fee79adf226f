"""Placement by importance with `late` memories against the usual ways: goodput at equal machines, and the reverse.

The whole trace is played and its second half counts, so a side that learns has only seen the past. All sides get the
same requests, seed by seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from msgspec import structs

from latebind.bench.statistics import Interval, ratio_of_means
from latebind.cluster.routing import Router
from latebind.planning.plan import PROBES, fewest
from latebind.planning.question import Offer, Question, Run, Way, served_router
from latebind.planning.runs import Figures, Runs
from latebind.simulation.cluster.fleet import MachineKind
from latebind.simulation.cluster.population import MINUTE, Rates, laid_over, population_of
from latebind.simulation.cluster.workload import Drawn, Models, Traffic, Workload
from research.cluster.routers import RULES, RandomHomes, Usual
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
WAYS = tuple([way for ways in SIDES.values() for way in ways])
# Answers of the median model are due in one second; it runs for 0.1 s and loads for 4.
MODELS = Models(
    size=Drawn("400MB", 0.8),
    seconds=Drawn(0.1, 0.4),
    once=0.4,
    batch=8,
    bandwidth="100MB",
    start=0.15,
    deadline=0.6,
    times=4.0,
    queue=1024,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played: `load` is the share of the machines' time that requests take without batches, on average.

    Of the trace the first `minutes` are played, all of them where that is 0.
    """

    machines: int = 20
    models: int = 200
    load: float = 0.5
    seeds: int = 5
    minutes: int = 0


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
    cells = [(share, way, seed) for share in shares for way in WAYS for seed in range(question.seeds)]
    every = [Run(Offer(kinds[share], way), seed, machines) for share, way, seed in cells]
    runs.expected = len(every) + len(shares) * question.seeds * PROBES
    found = dict(zip(cells, runs.play(every, f"{machines} machines"), strict=True))
    figures = {
        share: {way: tuple([found[share, way, seed] for seed in range(question.seeds)]) for way in WAYS}
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
        asked = [Run(Offer(kinds[share], ours[share]), seed, machines) for (share, seed), machines in probes]
        found = runs.play(asked, "fewer machines")
        return [one.in_time >= needed[cell] for one, (cell, _) in zip(found, probes, strict=True)]

    most = 2 * played.machines
    found = fewest(dict.fromkeys(needed, played.machines), enough, most=dict.fromkeys(needed, most), prices={})
    return {share: tuple([found[share, seed].machines or most for seed in range(seeds)]) for share in kinds}


def _kind(question: Question, share: float, machines: int) -> MachineKind:
    total = sum(model.served.footprint.size for model in question.population.models)
    return structs.replace(question.workload.machines[0], memory=round(share * total / machines))


def _in_time(some: Sequence[Figures]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([one.in_time for one in some])


def asked(services: Sequence[Service], scene: Scene) -> Question:
    """Return the question that a scene puts: each model has the counts of a service, of which the second half counts.

    With more models than services the trace is laid over itself (`laid_over`); it is scaled to the load.
    """
    counts = np.array([service.counts for service in services], dtype=np.int64)
    counts = counts[counts.any(axis=1)]
    minutes = scene.minutes or counts.shape[1]
    workload = Workload(
        (MachineKind("machine", ROOMY),),
        (structs.replace(MODELS, count=scene.models),),
        Traffic(rate=1.0, duration=minutes * MINUTE),
    )
    population = population_of(workload)
    alone = np.mean([model.served.costs.remaining(0, 1) for model in population.models])
    laid = laid_over(counts, scene.models, np.arange(minutes), np.random.default_rng(0))
    rates = Rates(laid * (scene.load * scene.machines / float(alone) * MINUTE * minutes / laid.sum()), MINUTE)
    warm = minutes * MINUTE / 2
    return Question(workload, replace(population, rates=rates), WAYS, warm=warm, seeds=scene.seeds)
