"""Requests and their models, given by workload, half of the trace and seed, so any can be made again."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError
from latebind.simulation.traces import HOUR, HTTP, Pairing, Request, Service, eligible, hour_of, invocations, paired
from research.mcache.models import Family, Storage, slowest_first

HALVES = 2


@dataclass(frozen=True, slots=True)
class Seven:
    """Requests for seven models by the services of an `hour` (section 6.1)."""

    hour: tuple[Service, ...]
    half: int
    seed: int
    pairing: Pairing
    family: Family
    storage: Storage
    requests: int

    @property
    def workload(self) -> str:
        """What distinguishes it from others of the same half and seed."""
        return str(self.pairing)

    def made(self) -> tuple[list[Request], dict[str, Footprint]]:
        """Return the requests in order of time, and the models."""
        footprints, random = self.storage.footprints(self.family), Random(f"{self.half} {self.seed}")
        models = paired(self.hour, slowest_first(footprints), self.pairing, random)
        return invocations(self.hour, models, random, self.requests), footprints


@dataclass(frozen=True, slots=True)
class Many:
    """Requests for as many models as an `hour` has services, each with its own."""

    hour: tuple[Service, ...]
    half: int
    seed: int
    triggers: tuple[str, ...]
    storage: Storage
    requests: int

    @property
    def workload(self) -> str:
        """What distinguishes it from others of the same half and seed."""
        return " and ".join(self.triggers)

    def made(self) -> tuple[list[Request], dict[str, Footprint]]:
        """Return the requests in order of time, and the models."""
        random = Random(f"{self.half} {self.seed}")
        footprints = self.storage.many(len(self.hour), random)
        return invocations(self.hour, list(footprints), random, self.requests), footprints


Scene = Seven | Many


@dataclass(frozen=True, slots=True)
class Drawn:
    """An hour that was drawn by `seed` from a half of the trace."""

    hour: tuple[Service, ...]
    half: int
    seed: int


def hours(services: Sequence[Service], seeds: int, requests: int, triggers: Sequence[str] = (HTTP,)) -> list[Drawn]:
    """Return an hour for each half and seed, in which `requests` are made if the trace has as many (`hour_of`)."""
    return [
        Drawn(tuple(hour_of(some, Random(f"hour {half} {seed}"), requests)), half, seed)
        for half, some in enumerate(halves(services, triggers))
        for seed in range(seeds)
    ]


def halves(services: Sequence[Service], triggers: Sequence[str] = (HTTP,)) -> list[tuple[Service, ...]]:
    """Return eligible services with the minutes of each half of a trace.

    Raises `ConfigError` where it is shorter than two hours, or nobody is asked for.
    """
    minutes = len(services[0].counts) // HALVES
    if minutes < HOUR:
        raise ConfigError(f"the trace has {HALVES * minutes} minutes: give one of two hours at least, an hour a half")
    found = [tuple(eligible(services, range(half * minutes, (half + 1) * minutes), triggers)) for half in range(HALVES)]
    if not all(any(any(service.counts) for service in some) for some in found):
        raise ConfigError(f"nothing in the trace is triggered by {' or '.join(triggers)}: give another one")
    return found
