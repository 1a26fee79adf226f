"""Whole models as victims: in a given order until they are enough, or the set that is worth least. Pure."""

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held

SOME = 8  # models of which the best set is found


class Item(NamedTuple):
    """Something of `size` bytes whose loss costs `value`."""

    value: float
    size: int


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
    order = sorted(range(len(items)), key=lambda place: (items[place].value / items[place].size, place))
    greedy = _one_by_one([items[place] for place in order], need)
    if not greedy:
        return []
    found = [order[place] for place in greedy]
    return sorted(found if greedy[-1] >= SOME else _Search(items, order[:SOME], need, found).best)


def _one_by_one(items: Sequence[Item], need: int) -> list[int]:
    found: list[int] = []
    for place, item in enumerate(items):
        found.append(place)
        need -= item.size
        if need <= 0:
            break
    else:
        return []
    for place in sorted(found, key=lambda place: -items[place].value):
        if items[place].size <= -need:
            found.remove(place)
            need += items[place].size
    return found


class _Search:
    """Depth first over `some` places of items, which ascend by value a byte, for less than those `found` cost.

    A branch ends where even a part of an item is too dear; an item that alone is too dear is not looked at.
    """

    def __init__(self, items: Sequence[Item], some: Sequence[int], need: int, found: list[int]) -> None:
        self.best = found
        self._least = sum([items[place].value for place in found])
        self._items = [(items[place].value, items[place].size, place) for place in some]
        self._items = [item for item in self._items if item[0] < self._least]
        if sum([size for _, size, _ in self._items]) >= need:
            self._go_on(0, need, 0.0, [])

    def _go_on(self, first: int, need: int, value: float, taken: list[int]) -> None:
        if need <= 0:
            self.best, self._least = taken, value
            return
        if value + self._bound(first, need) >= self._least:
            return
        dearer, size, place = self._items[first]
        if value + dearer < self._least:
            self._go_on(first + 1, need - size, value + dearer, [*taken, place])
        self._go_on(first + 1, need, value, taken)

    def _bound(self, first: int, need: int) -> float:
        """Return what the bytes cost at least where items may be cut."""
        total = 0.0
        for value, size, _ in islice(self._items, first, None):
            if size >= need:
                return total + value * need / size
            total += value
            need -= size
        return inf
