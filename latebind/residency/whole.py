"""Whole models as victims: in a given order until they are enough, or the set that is worth least. Pure."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held

SOME = 8  # models of which the best set is found


class Item(NamedTuple):
    """Something of `size` bytes whose loss costs `value`."""

    value: float
    size: int


Ranked = tuple[float, int, float, int]  # of an item its value a byte, its place, value and size


def first_whole(models: Iterable[Held], view: MemoryView, need: int, wanted: Held) -> list[Victim]:
    """Return whole models in their order until they free `need` bytes; nothing where they never do."""
    found: list[Victim] = []
    for model in models:
        if not may_go_whole(model, view, wanted):
            continue
        found.append(Victim(model.name, model.may_go()))
        need -= model.bytes
        if need <= 0:
            return found
    return []


def may_go_whole(model: Held, view: MemoryView, wanted: Held) -> bool:
    """Return whether all of a model may go to make room for `wanted`."""
    return model is not wanted and model.whole and model.name in view.evictable


def least_set(items: Sequence[Item], need: int) -> list[int]:
    """Return the places of items of at least `need` bytes whose loss costs least; nothing where all are too few.

    Exact among the first `SOME` that lose least for a byte, where these are enough; of more, one after another until
    they are enough, without those that were not needed in the end.
    """
    ranked = sorted([(value / size, place, value, size) for place, (value, size) in enumerate(items)])
    greedy = _one_by_one(ranked, need)
    if not greedy:
        return []
    found = [ranked[turn][1] for turn in greedy]
    if greedy[-1] < SOME:
        found = _Search(ranked[:SOME], need, found, sum([ranked[turn][2] for turn in greedy])).best
    return sorted(found)


def _one_by_one(ranked: Sequence[Ranked], need: int) -> list[int]:
    found: list[int] = []
    for turn, (_, _, _, size) in enumerate(ranked):
        found.append(turn)
        need -= size
        if need <= 0:
            break
    else:
        return []
    if len(found) > 1:
        for turn in sorted(found, key=lambda turn: -ranked[turn][2]):
            if ranked[turn][3] <= -need:
                found.remove(turn)
                need += ranked[turn][3]
    return found


class _Search:
    """Depth first over items that ascend by value a byte, for less than the `least` that those `found` cost.

    A branch ends where even a part of an item is too dear; an item that alone is too dear is not looked at.
    """

    def __init__(self, ranked: Sequence[Ranked], need: int, found: list[int], least: float) -> None:
        self.best = found
        self._least = least
        self._items = [item for item in ranked if item[2] < least]
        if sum([item[3] for item in self._items]) >= need:
            self._go_on(0, need, 0.0, [])

    def _go_on(self, first: int, need: int, value: float, taken: list[int]) -> None:
        while need > 0:
            if value + self._bound(first, need) >= self._least:
                return
            _, place, dearer, size = self._items[first]
            first += 1
            if value + dearer < self._least:
                self._go_on(first, need - size, value + dearer, [*taken, place])
        self.best, self._least = taken, value

    def _bound(self, first: int, need: int) -> float:
        """Return what the bytes cost at least where items may be cut."""
        total = 0.0
        for _, _, value, size in self._items[first:]:
            if size >= need:
                return total + value * need / size
            total += value
            need -= size
        return inf
