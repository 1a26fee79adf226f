"""In which order things stand that wait for each other; else they stay as they were written. Pure."""

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter


def circle(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return keys of which each waits for the one before, the first and the last the same; none where there are none.

    `behind` says of each key what it waits for.
    """
    try:
        TopologicalSorter({one: tuple(others) for one, others in behind.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def in_order(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return the keys, among which is no circle, each behind all that it waits for, else as they stand."""
    ordered: dict[str, None] = {}
    while len(ordered) < len(behind):
        ordered[next(one for one in behind if one not in ordered and ordered.keys() >= set(behind[one]))] = None
    return list(ordered)
