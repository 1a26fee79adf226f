"""Whole models as victims: in a given order until they free enough, or the set whose loss costs least. Pure."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from latebind.residency.base import MemoryView, Victim
from latebind.residency.model_state import ModelState

SEARCHED = 8  # models among which the best set is searched exactly


class Item(NamedTuple):
    """Something of `size` bytes whose loss costs `value`."""

    value: float
    size: int


Ranked = tuple[float, int, float, int]  # an item's value per byte, its place, its value and its size


def first_whole(models: Iterable[ModelState], view: MemoryView, need: int, wanted: ModelState) -> list[Victim]:
    """Return whole models in their order until they free `need` bytes; nothing where all together free less."""
    found: list[Victim] = []
    for model in models:
        if not may_evict_whole(model, view, wanted):
            continue
        found.append(Victim(model.name, model.evictable_pieces()))
        need -= model.bytes
        if need <= 0:
            return found
    return []


def may_evict_whole(model: ModelState, view: MemoryView, wanted: ModelState) -> bool:
    """Return whether all of a model may be evicted to make room for `wanted`."""
    return model is not wanted and model.wholly_evictable and model.name in view.evictable


def least_set(items: Sequence[Item], need: int) -> list[int]:
    """Return the places of items of at least `need` bytes whose loss costs least; nothing where all have less.

    Exact among the `SEARCHED` items of the lowest value per byte, where these are enough. Where more are needed, items
    are taken one after another until they are enough; those that turn out not to be needed are then left out.
    """
    ranked = sorted([(value / size, place, value, size) for place, (value, size) in enumerate(items)])
    greedy = _greedy(ranked, need)
    if not greedy:
        return []
    found = [ranked[rank][1] for rank in greedy]
    if greedy[-1] < SEARCHED:
        found = _Search(ranked[:SEARCHED], need, found, sum([ranked[rank][2] for rank in greedy])).best
    return sorted(found)


def _greedy(ranked: Sequence[Ranked], need: int) -> list[int]:
    """Return the ranks of the first items that have `need` bytes, without those that are not needed."""
    found: list[int] = []
    for rank, (_, _, _, size) in enumerate(ranked):
        found.append(rank)
        need -= size
        if need <= 0:
            break
    else:
        return []
    if len(found) > 1:
        for rank in sorted(found, key=lambda rank: -ranked[rank][2]):
            if ranked[rank][3] <= -need:
                found.remove(rank)
                need += ranked[rank][3]
    return found


class _Search:
    """Branch and bound, depth first over items that ascend by value per byte, for a set that costs less than `least`.

    `least` is the cost of the set `found`. A branch ends where even a fraction of an item costs too much; an item that
    alone costs too much is left out.
    """

    def __init__(self, ranked: Sequence[Ranked], need: int, found: list[int], least: float) -> None:
        self.best = found
        self._least = least
        self._items = [item for item in ranked if item[2] < least]
        if sum([item[3] for item in self._items]) >= need:
            self._branch(0, need, 0.0, [])

    def _branch(self, first: int, need: int, value: float, taken: list[int]) -> None:
        while need > 0:
            if value + self._bound(first, need) >= self._least:
                return
            _, place, item_value, size = self._items[first]
            first += 1
            if value + item_value < self._least:
                self._branch(first, need - size, value + item_value, [*taken, place])
        self.best, self._least = taken, value

    def _bound(self, first: int, need: int) -> float:
        """Return the lowest cost of `need` bytes if fractions of items could be taken."""
        total = 0.0
        for _, _, value, size in self._items[first:]:
            if size >= need:
                return total + value * need / size
            total += value
            need -= size
        return inf
