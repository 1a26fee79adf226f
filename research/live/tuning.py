"""Chooses the best of several baselines for each round by the other rounds, as one would tune on past traffic."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]  # one for each round


def tuned(sides: Mapping[str, Sequence[float]]) -> list[str]:
    """Return for each round the side with the least mean in all others, of a figure for each side and round.

    A side chosen by the rounds that it is then judged by would look better than it is, the more so the more there are.
    Of a side whose figure is infinite in some round, the others count as infinite too.
    """
    figures = np.array(list(sides.values()))
    with np.errstate(invalid="ignore"):
        others = figures.sum(axis=1, keepdims=True) - figures if figures.shape[1] > 1 else figures
    others[np.isnan(others)] = np.inf
    names = list(sides)
    return [names[best] for best in others.argmin(axis=0)]


def least(sides: Mapping[str, Figures]) -> Figures:
    """Return for each round the figure of the side that has the least mean in all others."""
    return _of(sides, tuned({name: figures.tolist() for name, figures in sides.items()}))


def most(sides: Mapping[str, Figures]) -> Figures:
    """Return for each round the figure of the side that has the greatest mean in all others."""
    return _of(sides, tuned({name: (-figures).tolist() for name, figures in sides.items()}))


def _of(sides: Mapping[str, Figures], best: Sequence[str]) -> Figures:
    return np.array([sides[name][number] for number, name in enumerate(best)])
