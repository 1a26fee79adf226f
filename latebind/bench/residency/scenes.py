"""Requests and the models they are for, each by workload, half of the trace and seed, so that any can be made again."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from latebind.bench.residency.models import Family, Storage, slowest_first
from latebind.domain.errors import ConfigError
from latebind.domain.footprint import Footprint
from latebind.simulation.traces import HOUR, HTTP, Pairing, Request, Service, eligible, hour_of, invocations, workload

HALVES = 2


@dataclass(frozen=True, slots=True)
class Seven:
    """An hour of requests for seven models, drawn from `services` (section 6.1)."""

    services: tuple[Service, ...]
    half: int
    seed: int
    pairing: Pairing
    family: Family
    storage: Storage
    requests: int

    @property
    def workload(self) -> str:
        """What sets it apart from others of the same half and seed."""
        return str(self.pairing)

    def made(self) -> tuple[list[Request], dict[str, Footprint]]:
        """Return requests in the order of time, and the models."""
        footprints = self.storage.footprints(self.family)
        random = Random(f"{self.half} {self.seed}")
        return workload(self.services, slowest_first(footprints), self.pairing, random, self.requests), footprints


@dataclass(frozen=True, slots=True)
class Many:
    """An hour of requests for as many models as there are services, each with its own."""

    services: tuple[Service, ...]
    half: int
    seed: int
    triggers: tuple[str, ...]
    storage: Storage
    requests: int

    @property
    def workload(self) -> str:
        """What sets it apart from others of the same half and seed."""
        return " and ".join(self.triggers)

    def made(self) -> tuple[list[Request], dict[str, Footprint]]:
        """Return requests in the order of time, and the models."""
        random = Random(f"{self.half} {self.seed}")
        services = hour_of(self.services, random, 1)
        footprints = self.storage.many(len(services), random)
        return invocations(services, list(footprints), random, self.requests), footprints


Scene = Seven | Many


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
