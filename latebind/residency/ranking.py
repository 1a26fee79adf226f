"""Names in the order of their keys, the lowest first; keys change one by one. Pure.

A sorted list rather than a heap: models that may not be evicted are skipped without being removed and inserted again,
and no stale entries stay behind. With 10,000 names a change moves 80 kB in memory, about 3 us.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", float, tuple[float, int])


class Ranking(Generic[Key]):
    """Holds each name once. Names with equal keys are in alphabetical order."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._order: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._order)

    def items(self) -> Iterator[tuple[Key, str]]:
        """Iterate over keys and names, the lowest key first."""
        return iter(self._order)

    def put(self, name: str, key: Key) -> None:
        """Insert `name` with this key, or change its key."""
        if name in self._keys:
            self.remove(name)
        self._keys[name] = key
        insort(self._order, (key, name))

    def remove(self, name: str) -> Key:
        """Remove `name` and return its key; raises `KeyError` where it is not here."""
        key = self._keys.pop(name)
        del self._order[bisect_left(self._order, (key, name))]
        return key
