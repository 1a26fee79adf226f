"""What is asked: models and their traffic, kinds of machines to choose from, ways to run them, and what is enough."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from latebind.domain.config import PolicyConfig, ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.planning.ways import Way
from latebind.simulation.cluster.fleet import ClusterModel, Fault, Fleet, MachineKind, Requests

GONE = 1e9  # seconds for which a machine that is lost stays away


class Traffic(Protocol):
    """Draws the requests of a run; equal seeds with another `scale` are like days with more or less traffic."""

    def requests(self, *, seed: int, scale: float = 1.0) -> Requests:
        """Return the requests of one run, `scale` times as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that a plan starts from.

    A run counts from `warm` seconds on. `target` is the share of requests whose answers must come in time, in each of
    `seeds` runs. `sizes` are shares of a kind's memory. No more than `most` machines are tried; 0: many times what
    compute or memory alone ask for. Where models and traffic are a `sample` of all, so are the machines.
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
    period: float = 60.0
    seeds: int = 3
    most: int = 0
    sample: float = 1.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Machines of one kind, with as much memory as the kind says, run in one way."""

    kind: MachineKind
    way: Way


@dataclass(frozen=True, slots=True)
class Change:
    """What is different from what was asked: `traffic`, `allowed`, `memory` and `loading` times as much, one `lost`."""

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
    """One run to be simulated: so many machines of an offer, with a seed, where something may have changed."""

    offer: Offer
    machines: int
    seed: int
    change: Change = AS_ASKED


def offers(question: Question) -> list[Offer]:
    """Return every kind with every size of memory in every way, without memories that the largest model is larger than.

    Raises `ConfigError` where none is left.
    """
    kinds = [
        replace(kind, memory=round(kind.memory * share))
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
    """Tell whether the largest of the models fits into so many bytes."""
    return _largest(models).footprint.size <= memory


def fleet_of(question: Question, run: Run) -> Fleet:
    """Return the machines of a run and what they serve."""
    change = run.change
    kind = replace(
        run.offer.kind,
        memory=round(run.offer.kind.memory * change.memory),
        loading=run.offer.kind.loading * change.loading,
    )
    return Fleet(
        (kind,) * run.machines,
        tuple([replace(model, allowed=model.allowed * change.allowed) for model in question.models]),
        msgspec.structs.replace(question.policy, shed=question.policy.shed and run.offer.way.sheds),
        msgspec.structs.replace(question.residency, policy=run.offer.way.residency, stages=run.offer.way.stages),
        question.hop,
        (Fault(question.warm, 0, GONE),) if change.lost else (),
    )


def _largest(models: Sequence[ClusterModel]) -> ServedModel:
    return max([model.served for model in models], key=lambda served: served.footprint.size)
