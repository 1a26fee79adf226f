"""Lower bounds on loading time if all requests are known beforehand: exactly for whole models, else by programmes.

Memory is empty at first. No policy that serves the same requests in turn (`simulation.sequential`) takes less.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError

MOST_MODELS = 12  # of which all sets are looked at

Footprints = Mapping[str, Footprint]
Row = tuple[list[int], int]  # uses whose model is kept to its next use, and bytes beside them


def least_whole(models: Sequence[str], footprints: Footprints, budget: int) -> float:
    """Return the least seconds of loading if each model is in memory either wholly or not at all.

    Dynamic programming over all sets that fit: behind a miss lies the model and any part of what lay there before.
    `inf` where a model does not fit. Raises `ConfigError` for more than 12 models.
    """
    names = list(footprints)
    if len(names) > MOST_MODELS:
        raise ConfigError(f"{len(names)} models have too many sets: give {MOST_MODELS} or fewer, or take another bound")
    sizes = np.array([footprints[name].size for name in names])
    sets = np.arange(1 << len(names))
    members = (sets[:, None] >> np.arange(len(names))) & 1
    too_large = members @ sizes > budget
    least = np.where(sets == 0, 0.0, inf)
    for name in models:
        place = names.index(name)
        there = members[:, place] == 1
        missed = _of_supersets(np.where(there, inf, least), len(names)) + footprints[name].penalty
        least = np.where(there, np.minimum(least, missed[sets & ~(1 << place)]), inf)
        least[too_large] = inf
    return float(least.min())


def least_streaming(models: Sequence[str], footprints: Footprints, budget: int) -> float:
    """Return a bound for policies that may evict stages behind a request: only one stage must be in memory at a time.

    `inf` where a stage does not fit. Time is taken in proportion to bytes, which is no more than it takes. What comes
    while all stages but the last run delays no request, so that it need not be kept.
    """
    rows: list[Row] = []
    last: dict[str, int] = {}
    for use, name in enumerate(models):
        across = [kept for other, kept in last.items() if other != name]
        last[name] = use
        rows += [(across, max(footprints[name].sizes)), ([*across, use], 0)]
    return _solved(models, {name: _waited_for(footprint) for name, footprint in footprints.items()}, budget, rows)


def _solved(
    models: Sequence[str], halves: Mapping[str, tuple["_Part", "_Part"]], budget: int, rows: Sequence[Row]
) -> float:
    """Choose what is kept of each model from each use to the next, so that the most seconds are saved.

    Of each use that is a share of the smallest part, and a share of the rest. Bytes are shares of the budget.
    """
    if any(beside > budget for _, beside in rows):
        return inf
    n, parts = len(models), [halves[name] for name in models]
    saved = np.concatenate([_saved(models, [part.seconds for part in both]) for both in zip(*parts, strict=True)])
    sizes = np.array([part.size / budget for both in zip(*parts, strict=True) for part in both])
    column = np.concatenate([np.array([*kept, *(n + use for use in kept)], int) for kept, _ in rows])
    row = np.repeat(np.arange(len(rows)), [2 * len(kept) for kept, _ in rows])
    room = np.array([1.0 - beside / budget for _, beside in rows])
    weights = csr_array((sizes[column], (row, column)), shape=(len(rows), 2 * n))
    found = linprog(-saved, A_ub=weights, b_ub=room, bounds=(0.0, 1.0), method="highs")
    if not found.success:
        raise RuntimeError(f"HiGHS has not solved the programme: {found.message}")
    return float(sum(part.seconds for both in parts for part in both) + found.fun)


class _Part(NamedTuple):
    """A part of a model: its bytes, and the seconds that keeping them saves."""

    size: int
    seconds: float


def _waited_for(footprint: Footprint) -> tuple[_Part, _Part]:
    """Return the smallest part that makes a model present, which saves the fixed part of a load, and the rest.

    Of the rest only what is waited for: what may come while stages run counts for nothing.
    """
    smallest = min(footprint.sizes)
    a_byte = (footprint.penalty - footprint.fixed) / footprint.size
    rest = footprint.size - smallest
    seconds = max(0.0, a_byte * rest - sum(footprint.runs[:-1]))
    return (
        _Part(smallest, footprint.fixed + a_byte * smallest),
        _Part(round(seconds / a_byte) if seconds else 0, seconds),
    )


def _saved(models: Sequence[str], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Return the seconds that keeping something from each use to the next saves; behind the last one nothing."""
    saved, later = np.zeros(len(models)), set[str]()
    for use in range(len(models) - 1, -1, -1):
        if models[use] in later:
            saved[use] = seconds[use]
        later.add(models[use])
    return saved


def _of_supersets(least: NDArray[np.float64], models: int) -> NDArray[np.float64]:
    """Return for each set the least over all sets that contain it."""
    found = least.reshape((2,) * models)
    for axis in range(models):
        without, with_it = np.split(found, 2, axis)
        found = np.concatenate([np.minimum(without, with_it), with_it], axis)
    return found.reshape(-1)
