"""Ratios of paired runs with bootstrap intervals: the only reliable figures from a noisy machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the 95 % interval of its bootstrap."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.written(".3f")

    def written(self, form: str, unit: str = "") -> str:
        """Write it in a number format such as `+.1f`, with a unit after the estimate."""
        return f"{self.value:{form}}{unit} [{self.low:{form}}, {self.high:{form}}]"

    def change(self) -> str:
        """Write a ratio as how much more it is, in percent."""
        return f"{self.value - 1.0:+.1%} [{100 * self.low - 100:+.1f}, {100 * self.high - 100:+.1f}]"

    def scaled(self, by: float) -> "Interval":
        """Return it in another unit, multiplied by `by`."""
        return Interval(by * self.value, by * self.low, by * self.high)


def ratio_of_means(above: ArrayLike, below: ArrayLike, *, block: int = 1, seed: int = 0) -> Interval:
    """Return mean(above) / mean(below) of values `(N,)` paired by rounds, seeds or rows.

    Blocks of neighbors are resampled together.
    """
    above, below = np.asarray(above), np.asarray(below)
    blocks = max(1, len(above) // block)
    pieces = np.array_split(np.arange(len(above)), blocks)
    sums = np.array([[above[piece].sum(), below[piece].sum()] for piece in pieces])
    drawn = np.random.default_rng(seed).integers(0, blocks, (RESAMPLES, blocks))
    totals = sums[drawn].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # some draws may have 0 below
        ratios, value = totals[:, 0] / totals[:, 1], above.mean() / below.mean()
    low, high = np.percentile(ratios, [2.5, 97.5], method="inverted_cdf")  # between inf and inf there is no number
    return Interval(float(value), float(low), float(high))


def mean_interval(values: NDArray[np.float64], *, block: int = 1, seed: int = 0) -> Interval:
    """Return the mean of values; blocks of neighbors are resampled together."""
    return ratio_of_means(values, np.ones_like(values), block=block, seed=seed)


def median_interval(values: Sequence[float], *, seed: int) -> Interval:
    """Return the median of values and the interval of its bootstrap."""
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Interval(median(values), float(low), float(high))
