"""Compares a backend's outputs with eager's. Relative error: the largest difference over the largest value."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from latebind.program.backends import StageFunction
from latebind.program.graph import Graph
from latebind.program.measure import run_chain, with_batch
from latebind.program.rebuild import run_eagerly

DEFAULT_TOLERANCE = 1e-5


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return max |found - expected| / max |expected|, the worst over all outputs; infinite for other shapes or dtypes.

    Infinities and NaNs must be the same in both.
    """
    pairs = list(zip(found, expected, strict=False))
    if len(found) != len(expected) or any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return float("inf")
    return max(_error(a.double(), b.double()) for a, b in pairs)


def _error(found: Tensor, expected: Tensor) -> float:
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(found), finite):
        return float("inf")
    if not torch.allclose(found[~finite], expected[~finite], equal_nan=True):
        return float("inf")
    difference = (found[finite] - expected[finite]).abs()
    if difference.numel() == 0 or difference.max() == 0:
        return 0.0
    return float(difference.max() / expected[finite].abs().max().clamp_min(1e-30))


def chain_error(
    stages: Sequence[StageFunction],
    graphs: Sequence[Graph],
    weights: Mapping[str, Tensor],
    inputs: tuple[Tensor, ...],
    batches: Sequence[int],
) -> float:
    """Return the worst relative error of any single stage and of the whole chain against eager, over these batches."""
    worst = 0.0
    for batch in batches:
        rows = exact = with_batch(inputs, batch)
        for stage, graph in zip(stages, graphs, strict=True):
            expected = run_eagerly(graph, weights, exact)
            worst = max(worst, relative_error(stage(*exact), expected))
            exact = expected
        worst = max(worst, relative_error(run_chain(stages, rows), exact))
    return worst
