"""Whole models as victims: in a given order until they are enough, or the set that is worth least. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from latebind.residency.base import MemoryView, Victim
from latebind.residency.held import Held

SOME = 8  # models of which the best set is found


@dataclass(frozen=True, slots=True)
class Item:
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
    some = [items[place] for place in order[:SOME]]
    best = _Search(some, need, greedy).best if greedy[-1] < SOME else greedy
    return sorted(order[place] for place in best)


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
    """Depth first over items that ascend by value a byte; a branch ends where even a part of an item is too dear."""

    def __init__(self, items: Sequence[Item], need: int, found: list[int]) -> None:
        self._items = items
        self.best = found
        self._least = sum(items[place].value for place in found)
        self._go_on(0, need, 0.0, [])

    def _go_on(self, place: int, need: int, value: float, taken: list[int]) -> None:
        if need <= 0:
            self.best, self._least = taken, value
            return
        if value + self._bound(place, need) >= self._least:
            return
        item = self._items[place]
        if value + item.value < self._least:
            self._go_on(place + 1, need - item.size, value + item.value, [*taken, place])
        self._go_on(place + 1, need, value, taken)

    def _bound(self, place: int, need: int) -> float:
        """Return what the bytes cost at least where items may be cut."""
        value = 0.0
        for item in islice(self._items, place, None):
            if item.size >= need:
                return value + item.value * need / item.size
            value += item.value
            need -= item.size
        return inf
