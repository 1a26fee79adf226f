"""What stages cost on the core that engines have, on the day of a benchmark: what it simulates with.

A machine that others share changes its speed within seconds. So passes over the profile alternate with an engine that
answers one request after another, and each pass is taken relative to itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from latebind.batching.estimate import Estimate
from latebind.bench.exits import Setting
from latebind.bench.server import pinned
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.program.load import load_program
from latebind.program.program import profile_program
from latebind.repository.directory import ModelDirectory
from latebind.sequence.measure import profile_sequence
from latebind.sequence.stored import is_stored_sequence, load_sequence

PASSES = 3  # over the profile
SLOTS = 4096

Lengths = Sequence[tuple[int, int]]  # of inputs and answers, in steps


async def profiled_here(
    path: Path, setting: Setting, pace: Callable[[], Awaitable[float]], lengths: Lengths
) -> tuple[ServedModel, float]:
    """Return the model with what its stages cost in a loop, at the pace of 1, on the core that engines will have.

    And how much longer the engine takes for one request after another, as a share. Passes over the profile alternate
    with the engine; each is taken relative to itself.
    """
    with pinned((setting.engine_core,)):
        again = _profiler(path, setting)
    passes, beyond = [], []
    for _ in range(PASSES):
        here = await pace()
        with pinned((setting.engine_core,)):
            served, quick = again(()), again((1,))
        beyond.append(0.5 * (here + await pace()) / alone(quick, lengths) - 1.0)
        passes.append(_scaled(served.costs, 1.0 / alone(served, lengths)))
    return replace(served, costs=_middle(passes)), float(np.median(beyond))


def _profiler(path: Path, setting: Setting) -> Callable[[Sequence[int]], ServedModel]:
    """Return what measures the model at these batch sizes, at all that profiles have if there are none."""
    directory = ModelDirectory.open(path)
    if is_stored_sequence(directory):
        sequence = load_sequence(directory, threads=1, backend=setting.backend)

        def profile_tokens(batches: Sequence[int]) -> ServedModel:
            found = profile_sequence(sequence, batches)
            return ServedModel(found.spec, found.costs, max_queued=SLOTS)

        return profile_tokens
    program = load_program(directory, threads=1, backend=setting.backend).without_entry()

    def profile(batches: Sequence[int]) -> ServedModel:
        found = profile_program(program, batches=batches)
        return ServedModel(found.spec, found.costs, max_queued=SLOTS)

    return profile


def alone(served: ServedModel, lengths: Lengths) -> float:
    """Return the mean seconds that rows of these lengths take by themselves, by profile."""
    estimate = Estimate(served.spec, served.costs)
    return float(np.mean([estimate.whole(1, inputs, outputs) for inputs, outputs in lengths]))


def at_pace(profiled: ServedModel, seconds: float, beyond: float, lengths: Lengths) -> tuple[ServedModel, float]:
    """Return the model as the engine runs it, and the seconds that a launch takes there beyond the profile.

    What one request after another takes longer than by the profile is laid on all launches alike.
    """
    launches = np.mean([profiled.spec.stages + (outputs - 1) for _, outputs in lengths])
    loop = seconds / (1.0 + beyond)
    launch = float((seconds - loop) / launches)
    costs = _scaled(profiled.costs, loop)
    stages = tuple(Curve(curve.batches, tuple(max(0.0, s + launch) for s in curve.seconds)) for curve in costs.stages)
    return replace(profiled, costs=replace(costs, stages=stages)), launch


def _scaled(costs: ModelCosts, factor: float) -> ModelCosts:
    def times(curve: Curve) -> Curve:
        return Curve(curve.batches, tuple(factor * seconds for seconds in curve.seconds))

    slopes = {stage: times(curve) for stage, curve in costs.slopes.items()}
    return replace(costs, stages=tuple(map(times, costs.stages)), slopes=slopes)


def _middle(passes: Sequence[ModelCosts]) -> ModelCosts:
    """Return the median of several measurements at each batch size."""

    def middle(curves: Sequence[Curve]) -> Curve:
        return Curve(curves[0].batches, tuple(np.median([curve.seconds for curve in curves], axis=0).tolist()))

    stages = tuple(middle(curves) for curves in zip(*(costs.stages for costs in passes), strict=True))
    slopes = {stage: middle([costs.slopes[stage] for costs in passes]) for stage in passes[0].slopes}
    return replace(passes[0], stages=stages, slopes=slopes)
