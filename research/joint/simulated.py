"""Joint runs on a virtual clock: the same scheduler and the same parts, with a cost model in place of engines."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from random import Random

import numpy as np

from latebind.bench.rounds import Progress, in_rounds
from latebind.domain.actions import Outcome
from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, in_turn
from latebind.learned.stored import read_caches, with_caches
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, leaving_stage
from research.hardware.networks import NETWORKS
from research.live import Measure, Played
from research.sides import Side, alone

UNLIMITED = 1 << 30  # requests that may wait
FOR_EVER = 1e9  # seconds
BATCHES = (1, 2, 4, 8, 16, 32, 64)
STEEP_GAIN = 13.0  # times as long as together, one by one, take so many that wait for the weights of a layer:
STEEP_AT = 32


class Scaling(StrEnum):
    """How the time of a stage grows with its batch."""

    OWN = "own"
    NPU = "npu"
    STEEP = "steep"


@dataclass(frozen=True, slots=True)
class Costs:
    """A model as a scheduler knows it, without and with its learned caches."""

    whole: ServedModel
    exits: ServedModel

    @classmethod
    def read(cls, repository: Path, model: str, scaling: Scaling = Scaling.OWN) -> "Costs":
        """Read what `build` measured; other scalings keep what one request alone takes."""
        (path,) = find_models(repository, [model])
        directory = ModelDirectory.open(path)
        spec, costs = read_spec_and_costs(directory)
        whole = ServedModel(spec, _scaled(costs, scaling), max_queued=UNLIMITED)
        early, costs = with_caches(spec, costs, read_caches(directory))
        return cls(whole, ServedModel(early, _scaled(costs, scaling), max_queued=UNLIMITED))


def relative(scaling: Scaling) -> Curve:
    """Return how many times as long as one request a batch takes: ResNet on the accelerator, or weights from memory."""
    if scaling is Scaling.NPU:
        curve = in_turn(NETWORKS["resnet"]().served().costs.stages)
        return Curve(curve.batches, tuple(seconds / curve.at(1) for seconds in curve.seconds))
    fixed = (STEEP_AT - STEEP_AT / STEEP_GAIN) / (STEEP_AT - 1)
    return Curve(BATCHES, tuple(fixed + (1.0 - fixed) * batch for batch in BATCHES))


def _scaled(costs: ModelCosts, scaling: Scaling) -> ModelCosts:
    if scaling is Scaling.OWN:
        return costs
    shape = relative(scaling)

    def like(curve: Curve) -> Curve:
        return Curve(shape.batches, tuple(curve.at(1) * times for times in shape.seconds))

    lookups = {stage: like(curve) for stage, curve in costs.lookups.items()}
    slopes = {stage: like(curve) for stage, curve in costs.slopes.items()}
    return replace(costs, stages=tuple(map(like, costs.stages)), lookups=lookups, slopes=slopes)


def on_costs(costs: Costs, sides: Mapping[str, Side], part: Measure, *, seed: int, progress: Progress) -> None:
    """Run a part on simulated sides."""
    asyncio.run(part(Simulated(costs, sides), Random(seed), progress))


class Simulated:
    """A contest on a virtual clock. One worker runs at a time, as many as there are."""

    def __init__(self, costs: Costs, sides: Mapping[str, Side]) -> None:
        self._costs = costs
        self._sides = sides

    @property
    def alone(self) -> float:
        """Seconds that the base model takes for one request after another, with an answer of average length."""
        whole = self._costs.whole
        return alone(whole, [(steps, steps) for steps in whole.costs.output_steps])

    async def saturated(
        self, names: Sequence[str], seconds: float, rounds: int, random: Random, tell: Progress
    ) -> dict[str, list[float]]:
        """Return the time a request takes where all come at once, in units of `alone`."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in in_rounds(rounds):
            tell("saturation", number / rounds)
            times = [0.0] * max(200, round(seconds / self.alone))
            played = await self.block(names, times, random, alone=self.alone, allowed=FOR_EVER)
            for name in names:
                found[name].append(float(played[name].seconds.max()) / len(times) / self.alone)
        return found

    async def block(
        self, names: Sequence[str], times: Sequence[float], random: Random, *, alone: float, allowed: float
    ) -> dict[str, Played]:
        """Return the outcome of requests on each side; on all sides with exits a request leaves at the same place."""
        del alone  # nothing changes its pace here
        early = [leaving_stage(self._costs.exits, random) for _ in times]
        steps = random.choices(self._costs.whole.costs.output_steps, k=len(times))
        return {name: self._played(self._sides[name], times, early, steps, allowed) for name in names}

    def _played(
        self, side: Side, times: Sequence[float], early: Sequence[int], steps: Sequence[int], allowed: float
    ) -> Played:
        served = self._costs.exits if side.exits else self._costs.whole
        last, name = served.spec.stages - 1, served.spec.name
        crew = len(side.granularities) or side.workers
        simulator = Simulator(SchedulerConfig((served,), crew, side.policy, side.granularities, at_once=1))
        leaves = early if side.exits else [last] * len(times)
        records = simulator.run(
            Arrival(at, name, allowed, stage, outputs, outputs)
            for at, stage, outputs in zip(times, leaves, steps, strict=True)
        )
        simulator.scheduler.check()
        records.sort(key=lambda record: record.request)
        seconds = [record.latency if record.outcome is Outcome.ANSWERED else inf for record in records]
        left = [record.outcome is Outcome.ANSWERED and record.stage < last for record in records]
        return Played(np.array(seconds), np.array(left))
