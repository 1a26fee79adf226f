"""Tables of seconds by profile, stage and batch, computed once as `batching/estimate.py` and `exits.py` do.

Models with the same costs and the same largest batch share a profile.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.batching.exits import RARE, alive
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.simulation.cluster.compiled.compile import entry

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profiles:
    """`seconds` of a stage, `rest` of all from it on, `soon` those until somebody may leave: (P, S + 1, B + 1).

    `best` are the answers a second of the latter. By batch (P, B + 1): `answered` a second from start to end, seconds
    of `work` that a request is where batches are no larger, and at each of `ends` (P,) places (P, B + 1, S) the seconds
    and shares of who has left. `alive` (P, S + 1) is the share of requests that runs a stage, `lookups` (P, S) says
    whether one stands behind it.
    """

    seconds: Floats
    lookups: NDArray[np.uint8]
    rest: Floats
    soon: Floats
    best: Floats
    answered: Floats
    work: Floats
    chance_seconds: Floats
    chance_shares: Floats
    ends: NDArray[np.int32]
    alive: Floats


def profiles_of(models: list[ServedModel], largest: list[int]) -> tuple[Profiles, list[int]]:
    """Return the profiles of models that are run in batches of at most `largest`, and which each has."""
    places: dict[tuple[int, int, tuple[int, ...]], int] = {}
    own = [places.setdefault((id(m.costs), m.spec.stages, m.spec.lookups), len(places)) for m in models]
    some = {place: model for model, place in zip(models, own, strict=True)}
    stages, most = max(m.spec.stages for m in models), max(largest)
    seconds = np.zeros((len(some), stages + 1, most + 1))
    shares, leaves = np.zeros((len(some), stages + 1)), np.zeros((len(some), stages), dtype=np.uint8)
    lookups, counts = np.zeros_like(leaves), np.zeros(len(some), dtype=np.int32)
    curves: dict[Curve, Floats] = {}
    for place, model in some.items():
        n, costs = model.spec.stages, model.costs
        counts[place] = n
        shares[place, : n + 1] = alive(model.spec, costs)
        for stage in range(n):
            seconds[place, stage, 1:] = _of_a_stage(costs, stage, most, curves)
            leaving = costs.hit_rates.get(stage, 0.0) / shares[place, stage]
            leaves[place, stage] = leaving >= RARE or stage + 1 == n
            lookups[place, stage] = stage in model.spec.lookups
    return Profiles(seconds, lookups, *_worked_out(seconds, shares, leaves, counts)), own


def _of_a_stage(costs: ModelCosts, stage: int, most: int, curves: dict[Curve, Floats]) -> Floats:
    lookup = costs.lookups.get(stage)
    seconds = _sampled(costs.stages[stage], most, curves)
    return seconds if lookup is None else seconds + _sampled(lookup, most, curves)


def _sampled(curve: Curve, most: int, curves: dict[Curve, Floats]) -> Floats:
    known = curves.get(curve)
    if known is None:
        known = curves[curve] = np.array([curve.at(batch) for batch in range(1, most + 1)])
    return known


def _worked_out(seconds: Floats, shares: Floats, leaves: Any, counts: Any) -> tuple[Any, ...]:
    profiles, stages, sizes = seconds.shape
    rest, soon, best = (np.zeros_like(seconds) for _ in range(3))
    answered, work = (np.zeros((profiles, sizes)) for _ in range(2))
    chances = [np.zeros((profiles, sizes, stages - 1)) for _ in range(2)]
    work_out(seconds, shares, leaves, counts, rest, soon, best, answered, work, *chances)
    return rest, soon, best, answered, work, *chances, leaves.sum(axis=1, dtype=np.int32), shares


@entry
def work_out(
    seconds: Any,
    shares: Any,
    leaves: Any,
    counts: Any,
    rest: Any,
    soon: Any,
    best: Any,
    answered: Any,
    work: Any,
    chance_seconds: Any,
    chance_shares: Any,
) -> None:
    """Fill the tables: `Estimate.rest`, `Exits.work` and `Exits._prospects` for every stage and batch."""
    for profile in range(seconds.shape[0]):
        for batch in range(1, seconds.shape[2]):
            for stage in range(counts[profile]):
                least, size = seconds[profile, stage, batch] / batch, 1
                while size < batch:
                    least, size = min(least, seconds[profile, stage, size] / size), 2 * size
                work[profile, batch] += shares[profile, stage] * least
            answered[profile, batch] = 1.0 / work[profile, batch]
            left = 0.0
            for stage in range(counts[profile] - 1, -1, -1):
                left += seconds[profile, stage, batch]
                rest[profile, stage, batch] = left
                passed, ends = 0.0, 0
                for later in range(stage, counts[profile]):
                    size = max(1, round(batch * shares[profile, later] / shares[profile, stage]))
                    passed += seconds[profile, later, size]
                    if not leaves[profile, later]:
                        continue
                    answers = batch * (1.0 - shares[profile, later + 1] / shares[profile, stage])
                    if not ends:
                        soon[profile, stage, batch] = passed
                    if not ends or answers / passed > best[profile, stage, batch]:
                        best[profile, stage, batch] = answers / passed
                    if not stage:
                        chance_seconds[profile, batch, ends] = passed
                        chance_shares[profile, batch, ends] = answers / batch
                    ends += 1
