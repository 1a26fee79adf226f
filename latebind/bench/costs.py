"""The seconds that requests take alone, by profile."""

from collections.abc import Sequence

import numpy as np

from latebind.batching.estimate import Estimate
from latebind.domain.config import ServedModel

SLOTS = 4096

Lengths = Sequence[tuple[int, int]]  # of inputs and answers, in steps


def alone(served: ServedModel, lengths: Lengths) -> float:
    """Return the mean seconds that rows of these lengths take alone, by profile."""
    estimate = Estimate(served.spec, served.costs)
    return float(np.mean([estimate.whole(1, inputs, outputs) for inputs, outputs in lengths]))
