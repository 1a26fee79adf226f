"""The order of things that wait for each other; otherwise they stay in the order in which they were written. Pure."""

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter


def circle(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return a cycle of keys, each of which waits for the one before, with the first repeated at the end; else [].

    `behind` has, for each key, the keys that it waits for.
    """
    try:
        TopologicalSorter({one: tuple(others) for one, others in behind.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def in_order(behind: Mapping[str, Collection[str]]) -> list[str]:
    """Return the keys, each behind all that it waits for, else in their own order. There must be no cycle."""
    ordered: dict[str, None] = {}
    while len(ordered) < len(behind):
        ordered[next(one for one in behind if one not in ordered and ordered.keys() >= set(behind[one]))] = None
    return list(ordered)
