"""What batching at stage granularity can ideally save over the best GraphB, by how a decoder step's cost grows.

A step of n requests takes f + (1 - f) n of what it takes for one. Beside GraphB and `lazy+` stands an ideal: shortest
remaining work first, for a policy that knows all lengths, may stop between any two steps, pays nothing for stage
boundaries, and shares the reading of inputs as well as decoder steps. That is not proved to be the least mean where
several run at once, but no live policy knows as much; where it misses a target, do not expect one to reach it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.simulation.workloads import poisson
from research.lazybatching.simulated import WARM_UP, Group, Plan, Scene, Task, sides

FIXED = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MULTIPLES = (0.5, 1.0, 1.5)
MOST = 32
STEP = 0.001  # seconds of a step of one request; only ratios are told
NOTHING = 1e-12  # seconds
OURS = "lazy+"
TOKENS = TensorSpec("tokens", "int64", (1,))


@dataclass(frozen=True, slots=True)
class Bound:
    """For steps with a share `fixed`, at a `multiple` of serial capacity: mean seconds with each seed, `(N,) float64`.

    `graph` are those of the GraphB with the least mean of all; `alone` is what a request takes by itself.
    """

    fixed: float
    multiple: float
    alone: float
    graph: NDArray[np.float64]
    ours: NDArray[np.float64]
    least: NDArray[np.float64]


def decoder(fixed: float, output_steps: Sequence[int]) -> ServedModel:
    """Return a decoder whose steps cost a share `fixed` whatever the batch; reading takes as long as one step."""
    batches = tuple(range(1, MOST + 1))
    curve = Curve(batches, tuple([STEP * (fixed + (1.0 - fixed) * batch) for batch in batches]))
    kinds = (StageKind.STATIC, StageKind.DECODER)
    spec = ModelSpec(f"{fixed:.0%} fixed", "1", (TOKENS,), (TOKENS,), 2, MOST, (), kinds)
    return ServedModel(spec, ModelCosts(at_any_length(curve, curve), output_steps=tuple(output_steps)), 1 << 30)


def bounds(plan: Plan, multiples: Sequence[float], progress: Progress) -> list[Bound]:
    """Simulate all GraphB without a window and `lazy+`, and find the ideal for the same requests."""
    models = [decoder(fixed, plan.scene.sentences.profiled) for fixed in FIXED]
    scene = Scene(plan.scene.sentences, tuple(models))
    mine = replace(plan, scene=scene)
    chosen = [side for side in sides(recurrent=True, size=MOST) if side.kinds[0] is Group.ZERO or side.label == OURS]
    cells = [
        (fixed, model.spec.name, multiple) for fixed, model in zip(FIXED, models, strict=True) for multiple in multiples
    ]
    tasks = [
        Task((name,), multiple * scene.capacity(name), side, 0, plan.requests, 1e9)
        for _, name, multiple in cells
        for side in chosen
    ]
    means = np.array([run.mean for run in mine.run(tasks, progress)]).reshape(len(cells), len(chosen), plan.seeds)
    ours = [side.label for side in chosen].index(OURS)
    found = []
    for (fixed, name, multiple), of_sides in zip(cells, means, strict=True):
        graphs = np.delete(of_sides, ours, axis=0)
        task = Task((name,), multiple * scene.capacity(name), chosen[0], 0, plan.requests, 1e9)
        least = np.array([_least(replace(task, seed=seed), scene) for seed in range(plan.seeds)])
        best = graphs[graphs.mean(axis=1).argmin()]
        found.append(Bound(fixed, multiple, 1.0 / scene.capacity(name), best, of_sides[ours], least))
    return found


def bound_rows(found: Sequence[Bound]) -> Rows:
    """Return the means of `lazy+`, the ideal, and a request alone over those of the best GraphB."""
    return [
        {
            "fixed share of a step": f"{one.fixed:.0%}",
            "step of 2, over 1": f"{2.0 - one.fixed:.2f}",
            "load": f"{one.multiple:.0%}",
            f"{OURS} / GraphB": str(ratio_of_means(one.ours, one.graph)),
            "shortest first, all known": str(ratio_of_means(one.least, one.graph)),
            "alone / GraphB": f"{one.alone / one.graph.mean():.3f}",
        }
        for one in found
    ]


def _least(task: Task, scene: Scene) -> float:
    """Return the ideal mean seconds of the requests that the task's run counts."""
    (name,) = task.networks
    served, lengths = scene.served(name), scene.lengths(name)
    random = Random(Random(task.seed).random())  # as in `simulated.run`
    calls = sorted(
        poisson(served, rate=task.load, requests=task.requests, allowed=1e9, random=random, lengths=lengths),
        key=lambda call: call.time,
    )
    step = served.costs.stages[1].at
    seconds = least_seconds(
        [call.time for call in calls], [step(1) * (1 + call.outputs) for call in calls], shares_of(step, MOST)
    )
    return float(np.mean(seconds[int(np.ceil(WARM_UP * len(calls))) :]))


def least_seconds(times: Sequence[float], work: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return the seconds of requests that arrive at `times` (ascending), whose `work` takes these seconds alone.

    `shares[n]` is the speed of the request that is behind n others, relative to running alone: the sum of the first n
    shares is the work that n requests together get done per second. Shares must not rise (`shares_of`); requests behind
    the last share do not advance.
    """
    left: list[tuple[float, int]] = []  # remaining seconds of the requests present, ascending
    ends, now, coming = [inf] * len(times), 0.0, 0
    while coming < len(times) or left:
        if not left:
            now = max(now, times[coming])
        while coming < len(times) and times[coming] <= now:
            left.append((work[coming], coming))
            coming += 1
        left.sort()
        running = left[: len(shares)]
        first = min([seconds / share for (seconds, _), share in zip(running, shares, strict=False) if share > 0.0])
        spent = min(first, times[coming] - now) if coming < len(times) else first
        now += spent
        for place, ((seconds, number), share) in enumerate(zip(running, shares, strict=False)):
            left[place] = seconds - spent * share, number
            if left[place][0] <= NOTHING:
                ends[number] = now
        left = [one for one in left if one[0] > NOTHING]
    return [end - time for end, time in zip(ends, times, strict=True)]


def shares_of(seconds: Callable[[int], float], most: int) -> list[float]:
    """Return the shares for `least_seconds`, where a batch of n takes `seconds(n)`, for up to `most` requests.

    The work that n requests get done per second is the least concave curve above n * seconds(1) / seconds(n), because a
    policy may also run some requests now and others later.
    """
    done = [0.0, *(n * seconds(1) / seconds(n) for n in range(1, most + 1))]
    shares, at = list[float](), 0
    while at < most:
        rise, to = max([((done[n] - done[at]) / (n - at), n) for n in range(at + 1, most + 1)])
        if rise <= 0.0:
            break
        shares += [rise] * (to - at)
        at = to
    return shares
