"""What batching at stage granularity can ideally save over the best GraphB, by how a decoder step's cost grows.

A step of n requests takes f + (1 - f) n of what it takes for one. Beside GraphB and `lazy+` stands the ideal of
`hardware.lower_bound`: shortest remaining work first, all lengths known, at no cost. That is not proved to be the
least mean where several run at once, but no live policy knows as much; where it misses a target, do not expect one to
reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, StageKind, TensorSpec
from latebind.simulation.workloads import poisson
from research.hardware.lower_bound import least_seconds, shares_of
from research.lazybatching.scene import UNLIMITED, Scene
from research.lazybatching.simulated import WARM_UP, Group, Plan, Task, sides

FIXED = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MULTIPLES = (0.5, 1.0, 1.5)
MOST = 32
STEP = 0.001  # seconds of a step of one request; only ratios are told
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
    return ServedModel(spec, ModelCosts((curve, curve), output_steps=tuple(output_steps)), UNLIMITED)


def bounds(plan: Plan, multiples: Sequence[float], progress: Progress) -> list[Bound]:
    """Simulate all GraphB without a window and `lazy+`, and find the ideal for the same requests."""
    models = [decoder(fixed, plan.scene.sentences.profiled) for fixed in FIXED]
    scene = Scene(plan.scene.sentences, {model.spec.name: model for model in models})
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
