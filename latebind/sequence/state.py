"""The state of requests that are being decoded: its parts, and the rows that hold it."""

from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import ExportError
from latebind.domain.model import LENGTH
from latebind.domain.sizes import Size, size_of

State = Mapping[str, Tensor]
WRITTEN = "written"  # the named dimension of the positions of an answer, if rows of state grow with it
LEAST_ROOM = 16  # positions
MOST_ROOM = 4  # times what is needed


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens that are not words: the one after which an answer starts, that which ends it, and that which pads."""

    start: int
    end: int
    padding: int


class Change(StrEnum):
    """What a step does to a part of the state: nothing, replace it, or write at the position of each row."""

    KEPT = "kept"
    REPLACED = "replaced"
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the state.

    `shape` is that of one row, the largest; if the part is written by position, `axis` are the positions. If rows grow,
    `sizes` give their shape in terms of `LENGTH`, what was read, and `WRITTEN`: a step then takes rows with room for
    what there is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    change: Change = Change.KEPT
    axis: int = 0
    sizes: tuple[Size, ...] = ()

    def shape_of(self, room: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of a row with this room in each named dimension."""
        return tuple([size_of(size, room) for size in self.sizes]) if self.sizes else self.shape


TOKEN, POSITION = "token", "position"
OWN = (Part(TOKEN, "int64", ()), Part(POSITION, "int64", ()))  # parts that every sequence model has


def change_of(part: Part, row: tuple[int, ...] | None, longest_output: int) -> Part:
    """Return the part with the change made by a step that returns rows of shape `row` for it (None: returns nothing).

    Raises `ExportError` for rows that fit neither the part nor one of its positions.
    """
    if row is None:
        return part
    if row == part.shape and WRITTEN not in part.sizes:
        return replace(part, change=Change.REPLACED)
    for axis, size in enumerate(part.sizes or part.shape):
        places = size == WRITTEN if WRITTEN in part.sizes else size == longest_output
        if places and row == part.shape[:axis] + part.shape[axis + 1 :]:
            return replace(part, change=Change.WRITTEN, axis=axis)
    raise ExportError(
        f"step returns {part.name!r} with rows of shape {row}, its state has {part.shape}: return all of it, or what "
        f"belongs to one of its {longest_output} positions"
    )


class StateRows:
    """One row for each owner (a request's slot); rows that run together are moved to the front, to be contiguous.

    So a batch is always a view, in whatever order requests come and go, and only as many rows are moved as have gone.

    Parts that grow have room for what the longest row needs, and up to four times that: a step reads all of a view, and
    a view shorter than the stride between rows would be copied at each step.
    """

    def __init__(self, parts: Iterable[Part], rows: int) -> None:
        self._parts = {part.name: part for part in (*OWN, *parts)}
        self._most = {
            size: whole
            for part in self._parts.values()
            for size, whole in zip(part.sizes, part.shape, strict=False)
            if isinstance(size, str)
        }
        self._room = {name: min(LEAST_ROOM, most) for name, most in self._most.items()}
        self._lengths: dict[int, int] = {}  # of what the owners have read
        self._arrays = {
            part.name: np.zeros((rows, *part.shape_of(self._room)), part.dtype) for part in self._parts.values()
        }
        self._owners: list[int | None] = [None] * rows
        self._places: dict[int, int] = {}
        self._batches: dict[int, dict[str, Tensor]] = {}  # cached views, by batch size
        self._by_position: dict[
            str, NDArray[Any]
        ] = {}  # cached views of parts written by position, with the positions as axis 1
        self._rebuild_views()

    def begin(self, owners: Sequence[int], state: State, lengths: Sequence[int] = ()) -> None:
        """Give each owner a row of `state`; parts that are missing from it begin as zeros.

        Tensors may be shorter than their parts; they fill the front. `lengths` are how much of their tensors the owners
        have read, if not all.
        """
        self.end(owners)
        places = self._free(len(owners))
        for owner, place in zip(owners, places, strict=True):
            self._owners[place], self._places[owner] = owner, place
        if self._most:
            read = [tensor.shape[1 + part.sizes.index(LENGTH)] for part, tensor in self._given(state)]
            self._lengths.update(zip(owners, lengths or [max(read, default=1)] * len(owners), strict=True))
            self._arrays[POSITION][places] = 0
            self._make_room()
        contiguous = places[-1] - places[0] + 1 == len(places)
        where = slice(places[0], places[-1] + 1) if contiguous else places  # a slice takes half of the time
        for name, array in self._arrays.items():
            given = state.get(name)
            if given is None:
                array[where] = 0
            else:  # what follows the longest of `lengths` is padding
                front: Any = _front(given.shape[1:], array.shape[1:])
                array[(where, *front)] = given.numpy()[(slice(None), *front)]

    def _given(self, state: State) -> list[tuple[Part, Tensor]]:
        """Return the given parts that depend on how much was read, with their tensors."""
        parts = self._parts.values()
        return [(part, state[part.name]) for part in parts if LENGTH in part.sizes and part.name in state]

    @property
    def owners(self) -> KeysView[int]:
        """The owners of rows."""
        return self._places.keys()

    def end(self, owners: Iterable[int]) -> None:
        """Free the rows of these owners, if they have any."""
        for owner in owners:
            place = self._places.pop(owner, None)
            if place is not None:
                self._owners[place] = None
                self._lengths.pop(owner, None)

    def to_front(self, owners: Sequence[int]) -> list[int]:
        """Move the rows of these owners to the front; return the owners in the order of their rows."""
        if self._most:
            self._make_room()
        count, wanted = len(owners), set(owners)
        others = [place for place in range(count) if self._owners[place] not in wanted]
        if others:
            behind = sorted(place for owner in owners if (place := self._places[owner]) >= count)
            for place, source in zip(others, behind, strict=True):
                self._swap(place, source)
        return [owner for owner in self._owners[:count] if owner is not None]

    def first(self, count: int) -> dict[str, Tensor]:
        """Return the first `count` rows as a batch, which may be written to."""
        found = self._batches.get(count)
        if found is None:
            found = {name: torch.from_numpy(array)[:count] for name, array in self._arrays.items()}
            self._batches[count] = found
        return found

    def change(self, changed: State) -> None:
        """Store what a step has returned for the first rows, at each row's position."""
        for name, given in changed.items():
            count, written = len(given), self._by_position.get(name)
            if written is None:
                self._arrays[name][:count] = given.numpy()
            else:
                written[self._numbers[:count], self._arrays[POSITION][:count]] = given.numpy()

    def _make_room(self) -> None:
        """Make room for what the rows have read, and for one more position than any of them has written.

        Room is doubled, so that no more is copied in all than has been written.
        """
        needed = {LENGTH: max(self._lengths.values(), default=1), WRITTEN: 1}
        if WRITTEN in self._most:
            needed[WRITTEN] += int(self._arrays[POSITION][list(self._places.values())].max(initial=0))
        room = {}
        for name, most in self._most.items():
            now, least = self._room[name], min(max(LEAST_ROOM, 1 << (needed[name] - 1).bit_length()), most)
            room[name] = now if least <= now <= MOST_ROOM * least else least
        if room == self._room:
            return
        self._room = room
        for part in self._parts.values():
            before = self._arrays[part.name]
            if before.shape[1:] != part.shape_of(room):
                array = np.zeros((len(before), *part.shape_of(room)), part.dtype)
                front = _front(before.shape[1:], array.shape[1:])
                for place in self._places.values():
                    array[place][front] = before[place][front]
                self._arrays[part.name] = array
        self._rebuild_views()

    def _swap(self, place: int, source: int) -> None:
        """Exchange the rows `place` and `source`; if `place` has no owner, just move `source` there."""
        mover, other = self._owners[source], self._owners[place]
        for array in self._arrays.values():
            if other is None:
                array[place] = array[source]
            else:
                array[[place, source]] = array[[source, place]]
        self._owners[place], self._owners[source] = mover, other
        for owner, where in ((mover, place), (other, source)):
            if owner is not None:
                self._places[owner] = where

    def _free(self, count: int) -> list[int]:
        """Return the first free rows; adds rows if there are too few."""
        free = [place for place, owner in enumerate(self._owners) if owner is None]
        if len(free) < count:
            rows = len(self._owners)
            more = max(rows, count)
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))
            self._owners += [None] * more
            self._rebuild_views()
            free += range(rows, rows + more)
        return free[:count]

    def _rebuild_views(self) -> None:
        """Rebuild the cached views, because the arrays were replaced.

        Making them at each step would take as long as writing to them.
        """
        self._batches.clear()
        self._numbers = np.arange(len(self._owners))
        self._by_position = {
            part.name: np.moveaxis(self._arrays[part.name], part.axis + 1, 1)
            for part in self._parts.values()
            if part.change is Change.WRITTEN
        }


def _front(one: Sequence[int], other: Sequence[int]) -> tuple[slice, ...]:
    """Return the front of a row that both shapes share."""
    return tuple([slice(min(sizes)) for sizes in zip(one, other, strict=True)])
