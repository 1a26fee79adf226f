"""What a plan starts from: models and traffic, kinds of machines, ways to run them, and the target to reach."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import structs

from latebind.cluster.routing import Router
from latebind.domain.config import ClusterConfig, PolicyConfig, ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.residency.policy import POLICIES
from latebind.simulation.cluster.fleet import ClusterModel, Fleet, MachineKind, Requests
from latebind.simulation.cluster.population import Population, population_of
from latebind.simulation.cluster.workload import read_workload

WAITS = "wait"  # the ending of labels where no request is refused for being late
served_router = partial(Router, most=ClusterConfig().calls)  # what `serve --on ray` has


@dataclass(frozen=True, slots=True)
class Way:
    """How machines are run: the residency policy of each, of whole models or of `stages`, and the `router`.

    Where it `sheds`, machines refuse requests that would be late; else all requests wait, also for their models.
    """

    residency: str
    sheds: bool = True
    stages: bool = False
    router: Callable[[], Router] = served_router
    name: str = ""  # of the router, where it is another than the one that is served with

    @property
    def label(self) -> str:
        """Its name in tables and options."""
        return "/".join([word for word in (self.name, self.residency, "" if self.sheds else WAITS) if word])


WAYS = (Way("late"), Way("lru"), Way("lru", sheds=False))


def way(text: str) -> Way:
    """Return the way with this label; raises `ConfigError` where there is none."""
    residency, slash, waits = text.partition("/")
    if (residency not in POLICIES and ":" not in residency) or (slash and waits != WAITS):
        raise ConfigError(
            f"--way is {text!r}: take one of {', '.join(POLICIES)}, or package.module:Class, with or without /{WAITS} "
            "behind it"
        )
    return Way(residency, sheds=not slash)


class Traffic(Protocol):
    """Draws the requests of a run; the same seed with another `scale` is the same day with more or less traffic."""

    def requests(self, *, seed: int, scale: float = 1.0) -> Requests:
        """Return the requests of one run, `scale` times as many as usual."""


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that a plan starts from.

    Requests count from `warm` seconds on. `target` is the share of requests that must be answered in time, in each of
    `seeds` runs. `sizes` are the shares of a kind's memory to try. At most `most` machines are tried; 0: many times
    what compute or memory alone need. Only of a `population` can samples be simulated.
    """

    models: tuple[ClusterModel, ...]
    traffic: Traffic
    kinds: tuple[MachineKind, ...]
    ways: tuple[Way, ...]
    policy: PolicyConfig
    residency: ResidencyConfig
    sizes: tuple[float, ...] = (1.0,)
    hop: float = 0.0
    target: float = 0.99
    warm: float = 0.0
    seeds: int = 3
    most: int = 0
    population: Population | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine, with its memory, and a way to run such machines."""

    kind: MachineKind
    way: Way


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the question: factors on `traffic`, allowed time, `memory` and `loading`, or one machine `lost`."""

    label: str = ""
    traffic: float = 1.0
    allowed: float = 1.0
    memory: float = 1.0
    loading: float = 1.0
    lost: bool = False


AS_ASKED = Change("as asked")
CHANGES = (
    Change("traffic +25 %", traffic=1.25),
    Change("deadlines halved", allowed=0.5),
    Change("memory -25 %", memory=0.75),
    Change("one machine lost", lost=True),
    Change("loads take twice as long", loading=2.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run to be simulated: `machines` machines of an offer, a seed, and a change.

    Where samples are simulated, the seed is also the number of the sample.
    """

    offer: Offer
    machines: int
    seed: int
    change: Change = AS_ASKED


def read_question(
    file: Path, *, ways: tuple[Way, ...], sizes: tuple[float, ...], target: float, warm: float, seeds: int, most: int
) -> Question:
    """Return the question of a workload file; `warm` is the share of a run that does not count.

    Raises `ConfigError` where the file makes no sense, or has no requests.
    """
    workload = read_workload(file)
    population = population_of(workload)
    if not len(population.requests(seed=0)):
        raise ConfigError(f"{file}: no request comes in {workload.traffic.duration:g} s: give more rate or duration")
    return Question(
        population.models,
        population,
        tuple(dict.fromkeys(workload.machines)),
        ways,
        workload.policy,
        workload.residency,
        sizes,
        workload.hop,
        target,
        warm * workload.traffic.duration,
        seeds,
        most,
        population,
    )


def offers(question: Question) -> list[Offer]:
    """Return every kind with every size of memory in every way, without memories smaller than the largest model.

    Raises `ConfigError` where none is left.
    """
    kinds = [
        structs.replace(kind, memory=round(kind.memory * share))
        for kind in question.kinds
        for share in sorted(question.sizes, reverse=True)
        if fits_in(question.models, round(kind.memory * share))
    ]
    if not kinds:
        largest = _largest(question.models)
        raise ConfigError(
            f"model {largest.spec.name!r} takes {largest.footprint.size} bytes, more than any machine has: "
            "give a kind of machine with more memory"
        )
    return [Offer(kind, way) for kind in kinds for way in question.ways]


def fits_in(models: Sequence[ClusterModel], memory: int) -> bool:
    """Return whether the largest of the models fits into `memory` bytes."""
    return _largest(models).footprint.size <= memory


def fleet_of(question: Question, run: Run) -> Fleet:
    """Return the machines of a run and what they serve."""
    change = run.change
    kind = structs.replace(
        run.offer.kind,
        memory=round(run.offer.kind.memory * change.memory),
        loading=run.offer.kind.loading * change.loading,
    )
    return Fleet(
        kind,
        run.machines,
        tuple([replace(model, allowed=model.allowed * change.allowed) for model in question.models]),
        structs.replace(question.policy, shed=question.policy.shed and run.offer.way.sheds),
        structs.replace(question.residency, policy=run.offer.way.residency, stages=run.offer.way.stages),
        question.hop,
        ((question.warm, 0),) if change.lost else (),
    )


def _largest(models: Sequence[ClusterModel]) -> ServedModel:
    return max([model.served for model in models], key=lambda served: served.footprint.size)
