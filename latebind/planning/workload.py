"""The planning question of a workload file: its models, its traffic, and its kinds of machines without their counts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latebind.domain.errors import ConfigError
from latebind.planning.question import Question
from latebind.planning.ways import Way
from latebind.simulation.cluster.fleet import Requests
from latebind.simulation.cluster.population import Population, population_of, random_of
from latebind.simulation.cluster.traffic import drawn_requests
from latebind.simulation.cluster.workload import Traffic, read_workload


@dataclass(frozen=True, slots=True)
class WorkloadTraffic:
    """The traffic that a workload file describes."""

    population: Population
    traffic: Traffic

    def requests(self, *, seed: int, scale: float = 1.0) -> Requests:
        """Return the requests of one run."""
        population = self.population
        rates = population.rates.times(np.full(len(population.rates.means), scale))
        random = random_of(seed, "requests")
        return drawn_requests(rates, population.fleet.models, self.traffic, random, population.weight)


def read_question(
    file: Path, *, ways: tuple[Way, ...], sizes: tuple[float, ...], target: float, warm: float, seeds: int, most: int
) -> Question:
    """Return the question of a workload file; `warm` is the share of a run that does not count.

    Raises `ConfigError` where the file makes no sense, or has no requests.
    """
    workload = read_workload(file)
    population = population_of(workload)
    traffic = WorkloadTraffic(population, workload.traffic)
    if not len(traffic.requests(seed=0)):
        raise ConfigError(f"{file}: no request comes in {workload.traffic.duration:g} s: give more rate or duration")
    return Question(
        population.fleet.models,
        traffic,
        tuple(dict.fromkeys(machines.kind() for machines in workload.machines)),
        ways,
        workload.policy,
        workload.residency,
        sizes,
        workload.hop,
        target,
        warm * workload.traffic.duration,
        workload.period,
        seeds,
        most,
        workload.sample,
    )
