"""What a plan starts from: models and traffic, kinds of machines, ways to run them, and the target to reach."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from latebind.cluster.routing import Router
from latebind.domain.config import ClusterConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.residency.policy import POLICIES
from latebind.simulation.cluster.fleet import Fleet, MachineKind
from latebind.simulation.cluster.population import Population, population_of
from latebind.simulation.cluster.workload import Workload, read_workload

WAITS = "wait"  # the ending of labels where no request is refused for being late
served_router = partial(Router, most=ClusterConfig().calls)  # that of `serve --on ray`


@dataclass(frozen=True, slots=True)
class Way:
    """How machines are run: the residency policy of each, and the `router` before them.

    If it `sheds`, machines refuse requests that would be late; else all requests wait, also for their models.
    """

    residency: str
    sheds: bool = True
    router: Callable[[], Router] = served_router
    name: str = ""  # of the router, if it is not the one that is served with

    @property
    def label(self) -> str:
        """Its name in tables and options."""
        return "/".join([word for word in (self.name, self.residency, "" if self.sheds else WAITS) if word])


WAYS = (Way("late"), Way("lru"), Way("lru", sheds=False))


def way(text: str) -> Way:
    """Return the way with this label; raises `ConfigError` if there is none."""
    residency, slash, waits = text.partition("/")
    if (residency not in POLICIES and ":" not in residency) or (slash and waits != WAITS):
        raise ConfigError(
            f"--way is {text!r}: use one of {', '.join(POLICIES)}, or package.module:Class, with or without /{WAITS} "
            "after it"
        )
    return Way(residency, sheds=not slash)


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that a plan starts from.

    `population` are the models of the workload and their requests, or a sample of them. Requests count from `warm`
    seconds on. `target` is the share of requests that must be answered in time, in each of `seeds` runs. `sizes` are
    the shares of a kind's memory to try. At most `most` machines are tried; 0: many times what compute or memory alone
    need.
    """

    workload: Workload
    population: Population
    ways: tuple[Way, ...]
    sizes: tuple[float, ...] = (1.0,)
    target: float = 0.99
    warm: float = 0.0
    seeds: int = 3
    most: int = 0

    @property
    def largest(self) -> ServedModel:
        """The model that takes the most memory."""
        return max([model.served for model in self.population.models], key=lambda served: served.footprint.size)

    def fits_in(self, memory: int) -> bool:
        """Return whether the largest model fits into `memory` bytes."""
        return self.largest.footprint.size <= memory


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
    """One run to be simulated: a draw of the traffic, `machines` machines of an offer, and a change.

    If samples are simulated, `seed` is also the number of the sample.
    """

    offer: Offer
    seed: int
    machines: int
    change: Change = AS_ASKED


def read_question(
    file: Path, *, ways: tuple[Way, ...], sizes: tuple[float, ...], target: float, warm: float, seeds: int, most: int
) -> Question:
    """Return the question of a workload file; `warm` is the share of a run that does not count.

    Raises `ConfigError` if the file is invalid, or has no requests.
    """
    workload = read_workload(file)
    population, duration = population_of(workload), workload.traffic.duration
    if not len(population.requests(seed=0)):
        raise ConfigError(f"{file}: no request comes in {duration:g} s: give more rate or duration")
    return Question(workload, population, ways, sizes, target, warm * duration, seeds, most)


def offers(question: Question) -> list[Offer]:
    """Return every kind with every size of memory in every way, without memories smaller than the largest model.

    Raises `ConfigError` if none is left.
    """
    kinds = [
        structs.replace(kind, memory=round(kind.memory * share))
        for kind in dict.fromkeys(question.workload.machines)
        for share in sorted(question.sizes, reverse=True)
        if question.fits_in(round(kind.memory * share))
    ]
    if not kinds:
        raise ConfigError(
            f"model {question.largest.spec.name!r} takes {question.largest.footprint.size} bytes, more than any "
            "machine has: give a kind of machine with more memory"
        )
    return [Offer(kind, way) for kind in kinds for way in question.ways]


def fleet_of(question: Question, run: Run) -> Fleet:
    """Return the machines of a run and what they serve."""
    kind, way, change, workload = run.offer.kind, run.offer.way, run.change, question.workload
    return Fleet(
        structs.replace(kind, memory=round(kind.memory * change.memory), loading=kind.loading * change.loading),
        run.machines,
        tuple([replace(model, allowed=model.allowed * change.allowed) for model in question.population.models]),
        structs.replace(workload.policy, shed=workload.policy.shed and way.sheds),
        structs.replace(workload.residency, policy=way.residency, stages=False),
        workload.hop,
        ((question.warm, 0),) if change.lost else (),
    )
