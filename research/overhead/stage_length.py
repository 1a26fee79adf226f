"""Finds how long a stage must be for scheduling by stages to pay for its boundaries. Simulated, so no clock counts.

A chain of stages is compared with the same chain as one stage, with the same requests. A launch costs both the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, poisson

STAGES = 8
MAX_BATCH = 16
GAIN = 4.0  # times as many answers a second in batches of 16: where newcomers catch up with others at all
LOAD = 0.6  # of what is answered then
LENGTHS = (0.0001, 0.0003, 0.0006, 0.0012, 0.005)  # seconds of a stage for one request
HITS = {2: 0.3, 4: 0.3}  # share that a learned cache answers behind a stage
LONG = 50.0  # times what a request takes alone, until it is due


@dataclass(frozen=True, slots=True)
class Worth:
    """Mean latency as one stage over that of the chain, by `lengths` of a stage in seconds; stages pay above 1."""

    exits: bool
    lengths: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def least(self) -> float | None:
        """The length of a stage below which stages lose, between two that were tried; None if the longest loses."""
        found = None
        for number in reversed(range(len(self.lengths))):
            if self.ratios[number] < 1.0:
                return found if found is None else self._between(number)
            found = self.lengths[number]
        return found

    def _between(self, number: int) -> float:
        (short, long), (below, above) = self.lengths[number : number + 2], self.ratios[number : number + 2]
        return short + (long - short) * (1.0 - below) / (above - below)


def run(*, launch: float, requests: int, seeds: int, policy: str = "lazy+") -> list[Worth]:
    """Compare without learned caches and with them; each launch costs `launch` seconds in addition to its work."""
    return [
        Worth(exits, LENGTHS, tuple(_ratio(policy, length, launch, exits, requests, seeds) for length in LENGTHS))
        for exits in (False, True)
    ]


def _ratio(policy: str, length: float, launch: float, exits: bool, requests: int, seeds: int) -> float:
    """Return the mean latency as one stage over that of the chain."""
    chain, whole = served(length, launch, stages=STAGES, exits=exits), served(length, launch, stages=1)
    ratios = []
    for seed in range(seeds):
        random = Random(seed)
        calls = list(
            poisson(
                chain,
                rate=LOAD * GAIN / (STAGES * length),
                requests=requests,
                allowed=LONG * STAGES * length,
                random=random,
            )
        )
        ratios.append(_mean(whole, policy, _to_the_end(calls)) / _mean(chain, policy, calls))
    return fmean(ratios)


def served(length: float, launch: float, *, stages: int, exits: bool = False) -> ServedModel:
    """Return the same work, cut into this many stages."""
    seconds = length * STAGES / stages
    curve = Curve((1, MAX_BATCH), (seconds + launch, seconds * MAX_BATCH / GAIN + launch))
    rates = HITS if exits else {}
    costs = ModelCosts((curve,) * stages, {}, dict(rates))
    return ServedModel(ModelSpec("net", "1", (), (), stages, MAX_BATCH, tuple(rates)), costs, 1 << 30)


def _to_the_end(calls: Sequence[Arrival]) -> list[Arrival]:
    return [Arrival(call.time, call.model, call.allowed, 0) for call in calls]


def _mean(model: ServedModel, policy: str, calls: Sequence[Arrival]) -> float:
    settings = SchedulerConfig((model,), 1, PolicyConfig(policy, MAX_BATCH, shed=False))
    return fmean(record.latency for record in Simulator(settings).run(calls))
