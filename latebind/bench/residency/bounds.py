"""The least that loads can take for requests that are all known before: exactly, and from below by linear programmes.

Memory is empty at first. Whoever plays the same requests one after another (`simulation.order`) takes no less.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from latebind.domain.errors import ConfigError
from latebind.domain.footprint import Footprint

MOST_MODELS = 12  # of which all sets are looked at
SCALE = 1e-9  # GB: solvers like numbers around 1

Footprints = Mapping[str, Footprint]


def least_whole(models: Sequence[str], footprints: Footprints, budget: int) -> float:
    """Return the least seconds of loading where a model is in memory wholly or not at all.

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


def least_in_pieces(models: Sequence[str], footprints: Footprints, budget: int) -> float:
    """Return a bound for whoever may keep any part of a model, but needs all of it in memory to run it.

    `inf` where a model does not fit. Time is taken in proportion to bytes, which is no more than it takes.
    """
    rows = [(kept, footprints[name].size) for name, kept, _ in _uses(models)]
    return _solved(models, footprints, budget, rows)


def least_streaming(models: Sequence[str], footprints: Footprints, budget: int) -> float:
    """Return a bound for whoever may let go what a request has passed: only one stage has to be there at a time.

    `inf` where a stage does not fit. Time is taken in proportion to bytes, which is no more than it takes.
    """
    rows: list[Row] = []
    for name, kept, behind in _uses(models):
        rows += [(kept, max(footprints[name].sizes)), (behind, 0)]
    return _solved(models, footprints, budget, rows)


Row = tuple[list[int], int]  # uses whose model is kept to its next use, and bytes beside them


def _uses(models: Sequence[str]) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield who is used, whose last uses reach across this one, and whose reach behind it."""
    last: dict[str, int] = {}
    for use, name in enumerate(models):
        across = [kept for other, kept in last.items() if other != name]
        last[name] = use
        yield name, across, [*across, use]


def _solved(models: Sequence[str], footprints: Footprints, budget: int, rows: Sequence[Row]) -> float:
    """Choose what share of each model is kept from each use to the next, so that most seconds are saved."""
    if any(beside > budget for _, beside in rows):
        return inf
    saved = _saved(models, footprints)
    sizes = np.array([footprints[name].size * SCALE for name in models])
    column = np.concatenate([np.array(kept, int) for kept, _ in rows])
    row = np.repeat(np.arange(len(rows)), [len(kept) for kept, _ in rows])
    room = np.array([(budget - beside) * SCALE for _, beside in rows])
    weights = csr_array((sizes[column], (row, column)), shape=(len(rows), len(models)))
    found = linprog(-saved, A_ub=weights, b_ub=room, bounds=(0.0, 1.0), method="highs")
    if not found.success:
        raise RuntimeError(f"HiGHS has not solved the programme: {found.message}")
    return float(sum(footprints[name].penalty for name in models) + found.fun)


def _saved(models: Sequence[str], footprints: Footprints) -> NDArray[np.float64]:
    """Return the seconds that keeping all of a model from each use to the next saves; behind the last one nothing."""
    saved, later = np.zeros(len(models)), set[str]()
    for use in range(len(models) - 1, -1, -1):
        name = models[use]
        if name in later:
            saved[use] = footprints[name].penalty
        later.add(name)
    return saved


def _of_supersets(least: NDArray[np.float64], models: int) -> NDArray[np.float64]:
    """Return for each set the least over all sets that contain it."""
    found = least.reshape((2,) * models)
    for axis in range(models):
        without, with_it = np.split(found, 2, axis)
        found = np.concatenate([np.minimum(without, with_it), with_it], axis)
    return found.reshape(-1)
