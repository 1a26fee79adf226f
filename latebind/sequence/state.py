"""The state of requests that are being answered: what it consists of, and the rows that it lies in."""

from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import ExportError

State = Mapping[str, Tensor]


class Change(StrEnum):
    """What a step does to a part of the state.

    Nothing; it puts another in its place; or it writes what belongs to its position and leaves the rest.
    """

    KEPT = "kept"
    REPLACED = "replaced"
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the state; `shape` is that of one row. `axis` of it are the positions, where it is written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    change: Change = Change.KEPT
    axis: int = 0


TOKEN, POSITION = "token", "position"
OWN = (Part(TOKEN, "int64", ()), Part(POSITION, "int64", ()))  # parts that every sequence model has


def change_of(part: Part, row: tuple[int, ...], longest_output: int) -> Part:
    """Return the part as a step changes it that returns rows of shape `row` for it. Raises `ExportError`."""
    if row == part.shape:
        return Part(part.name, part.dtype, part.shape, Change.REPLACED)
    for axis, size in enumerate(part.shape):
        if size == longest_output and row == part.shape[:axis] + part.shape[axis + 1 :]:
            return Part(part.name, part.dtype, part.shape, Change.WRITTEN, axis)
    raise ExportError(
        f"step returns {part.name!r} with rows of shape {row}, its state has {part.shape}: return all of it, or what "
        f"belongs to one of its {longest_output} positions"
    )


class Rows:
    """One row for each owner (a request's slot); those that run together are made to lie together, in front.

    So a batch is a view, whatever the order in which requests come and go, and nobody's state is moved but that of as
    many as have gone.
    """

    def __init__(self, parts: Iterable[Part], rows: int) -> None:
        self._parts = {part.name: part for part in (*OWN, *parts)}
        self._arrays = {part.name: np.zeros((rows, *part.shape), part.dtype) for part in self._parts.values()}
        self._owners: list[int | None] = [None] * rows
        self._places: dict[int, int] = {}
        self._batches: dict[int, dict[str, Tensor]] = {}  # by size: views, made once
        self._by_position: dict[str, NDArray[Any]] = {}  # likewise: of what is written, with the positions behind rows
        self._lie_anew()

    def begin(self, owners: Sequence[int], state: State) -> None:
        """Give each owner a row of `state`; parts that are not in it begin as zeros.

        Tensors may be shorter than the parts they fill, at the front.
        """
        self.end(owners)
        places = self._free(len(owners))
        for owner, place in zip(owners, places, strict=True):
            self._owners[place], self._places[owner] = owner, place
        together = places[-1] - places[0] + 1 == len(places)
        where = slice(places[0], places[-1] + 1) if together else places  # a slice in half of the time
        for name, array in self._arrays.items():
            given = state.get(name)
            if given is None:
                array[where] = 0
            else:
                front: list[Any] = [slice(size) for size in given.shape[1:]]
                array[(where, *front)] = given.numpy()

    @property
    def owners(self) -> KeysView[int]:
        """Who has a row."""
        return self._places.keys()

    def end(self, owners: Iterable[int]) -> None:
        """Forget these owners, as far as they have rows."""
        for owner in owners:
            place = self._places.pop(owner, None)
            if place is not None:
                self._owners[place] = None

    def together(self, owners: Sequence[int]) -> list[int]:
        """Bring the rows of these owners to the front and return them in the order in which they lie there."""
        count, wanted = len(owners), set(owners)
        others = [place for place in range(count) if self._owners[place] not in wanted]
        if others:
            behind = sorted(place for owner in owners if (place := self._places[owner]) >= count)
            for place, source in zip(others, behind, strict=True):
                self._swap(place, source)
        return [owner for owner in self._owners[:count] if owner is not None]

    def first(self, count: int) -> dict[str, Tensor]:
        """Return the first rows as a batch, which may be written to."""
        found = self._batches.get(count)
        if found is None:
            found = {name: torch.from_numpy(array)[:count] for name, array in self._arrays.items()}
            self._batches[count] = found
        return found

    def change(self, changed: State) -> None:
        """Take in what a step has returned for the first rows, at the position of each."""
        for name, given in changed.items():
            count, written = len(given), self._by_position.get(name)
            if written is None:
                self._arrays[name][:count] = given.numpy()
            else:
                written[self._numbers[:count], self._arrays[POSITION][:count]] = given.numpy()

    def _swap(self, place: int, source: int) -> None:
        """Put the row of `source` into `place`, and that of `place`, if somebody owns it, where it was."""
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
        """Return the first rows that nobody owns; there are made more if need be."""
        free = [place for place, owner in enumerate(self._owners) if owner is None]
        if len(free) < count:
            rows = len(self._owners)
            more = max(rows, count)
            for name, array in self._arrays.items():
                self._arrays[name] = np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))
            self._owners += [None] * more
            self._lie_anew()
            free += range(rows, rows + more)
        return free[:count]

    def _lie_anew(self) -> None:
        """Make the views of arrays that are new: a step would spend as long on some of them as on what it writes."""
        self._batches.clear()
        self._numbers = np.arange(len(self._owners))
        self._by_position = {
            part.name: np.moveaxis(self._arrays[part.name], part.axis + 1, 1)
            for part in self._parts.values()
            if part.change is Change.WRITTEN
        }
