"""Refilling against compaction alone, when saturated, and what refilling can gain by the cost model.

Compaction runs a batch of B requests to its end, while it shrinks; refilling gives the places of requests that have
left to others. It pays where a batch costs less than its requests one by one, because then small batches are dear.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from random import Random

import numpy as np

from latebind.batching.costs import shares_alive
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.config import PolicyConfig, ServedModel
from latebind.domain.costs import Curve
from latebind.domain.model import StageKind
from research.live import Contest
from research.policies import BATCHING
from research.sides import SERIAL, Side, graph

ALONE = "compaction alone"


def refill_bound(curves: Sequence[Curve], shares: Sequence[float], batch: int) -> float:
    """Return how many times more requests are answered at most if batches of B stay full at every stage.

    The sum over stages s of c_s(B S_s), over that of S_s c_s(B), S_s being the share of requests that run stage s:
    1 where costs are proportional to the batch, 1 over the mean share where they do not depend on it. No stage can do
    with less than full batches; what newcomers take to catch up comes on top.
    """
    compacted = sum(_at(curve, batch * share) for curve, share in zip(curves, shares, strict=True))
    refilled = sum(share * curve.at(batch) for curve, share in zip(curves, shares, strict=True))
    return compacted / refilled


def _at(curve: Curve, batch: float) -> float:
    """Return the cost of a batch of this average size; an empty one costs nothing."""
    low, high = floor(batch), ceil(batch)
    below = curve.at(low) if low else 0.0
    return below if low == high else below + (batch - low) * (curve.at(high) - below)


def unrolled(served: ServedModel) -> tuple[list[Curve], list[float]]:
    """Return the cost of each stage, of a decoder of each of its steps, and the share of requests that run it.

    Those before the last run with all who have not left at a learned cache; a decoder's step with all whose answer is
    as long. Where lookups are waited for, they are part of their stage; inputs are taken to be as long as answers are.
    """
    spec, costs = served.spec, served.costs
    curves: list[Curve] = []
    shares = shares_alive(spec, costs)
    for stage, curve in enumerate(costs.stages):
        if spec.kind(stage) is StageKind.DECODER:
            lengths = np.array(costs.output_steps)
            steps = range(int(lengths.max()))
            return curves + [curve for _ in steps], shares[:stage] + [float((lengths > step).mean()) for step in steps]
        inputs = round(float(np.mean(costs.output_steps))) if stage in costs.slopes else 1
        known = [curve, *(some[stage] for some in (costs.lookups, costs.slopes) if stage in some)]
        batches = tuple(sorted({batch for one in known for batch in one.batches}))
        curves.append(Curve(batches, tuple(costs.step(stage, batch, inputs) for batch in batches)))
    return curves, shares[:-1]


def sides(served: ServedModel) -> dict[str, Side]:
    """Return the sides at the model's largest batch; with sequence models, requests that are done leave the batch."""
    most, exits = served.spec.max_batch, not served.spec.kinds
    refilling = ("late",) if exits else ("continuous", "lazy", "lazy+", "late")
    policies = {"all wait for the last": graph(most, leave=False), ALONE: graph(most)}
    policies |= {name: PolicyConfig(BATCHING[name], most, shed=False) for name in refilling}
    serial = Side(SERIAL, graph(1))
    return {SERIAL: serial} | {name: Side(name, policy, exits=exits) for name, policy in policies.items()}


@dataclass(slots=True)
class RefillReport:
    """Seconds per request when saturated, by side, and the most that refilling can gain by the cost model."""

    predicted: float
    seed: int
    times_over: dict[str, list[float]] = field(default_factory=dict)
    alone: list[float] = field(default_factory=list)

    def rows(self) -> Rows:
        """Return the throughputs as rows of a table, over compaction alone."""
        compacted = self.times_over[ALONE]
        return [
            {
                "side": name,
                "requests a second": f"{1.0 / (np.mean(self.alone) * np.mean(times)):.1f}",
                f"over {ALONE}": str(ratio_of_means(compacted, times, seed=self.seed)),
                "at most, by the cost model": f"{self.predicted:.3f}",
            }
            for name, times in self.times_over.items()
        ]


async def measure(
    report: RefillReport,
    contest: Contest,
    served: ServedModel,
    rounds: int,
    seconds: float,
    random: Random,
    tell: Progress,
) -> None:
    """Add the results of this many rounds to the report."""
    for name, times in (await contest.saturated(list(sides(served)), seconds, rounds, random, tell)).items():
        report.times_over.setdefault(name, []).extend(times)
    report.alone.append(contest.alone)
