"""Slots: rows of shared memory in which requests pass from the frontend to the engine and back.

Where all rows of a model have one size, they lie in arrays, and the number of a slot is an index. Where they differ
(`ModelSpec.dims`), each has as many bytes as its own sizes take, in an extent of the memory behind all arrays. A call
has one extent for all of its rows, which follow each other there, so that a batch of them is a view too. The frontend
takes it when the call claims its slots, frees it with the last of them, and gives unused pages back to the system; it
notes for each slot where its row lies and how large it is, before the engine gets the request.
"""

import mmap
import os
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ITEM_BYTES, ModelSpec, TensorSpec
from latebind.engine.shared import Owners
from latebind.server.gateway import array_dtype

ALIGNMENT: Final = 64  # of arrays
GRANULE: Final = 16  # bytes: extents, and the tensors within, begin at a multiple and take one
KEPT: Final = 1 << 18  # bytes of pages without extents that are kept, because allocating them again costs time
KEPT_SHARE: Final = 8  # or up to one eighth of the bytes that are taken
MOST_SHAPES: Final = 4096  # that are cached for a model
MOST_LENGTH: Final = (1 << 32) - 1
MOST_NUMBER: Final = (1 << 64) - 1
VERSION = TensorSpec("version", "int32", ())  # of the learned caches that answered
PROMISED = TensorSpec("promised", "float32", ())  # the fidelity of an answer

Rows: TypeAlias = NDArray[np.generic]
Tensors: TypeAlias = tuple[Rows, ...]
Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = tuple[int, ...]
"""The sizes of the named dimensions of a row, in the order of its model's."""
Shapes: TypeAlias = Callable[[Sizes], tuple[Shape, ...]]
"""A function from the sizes of a row to the shapes of some of its tensors."""


class SizedSlots:
    """The slots of one model whose rows differ in size.

    `dims` `(slots, named dimensions) int32` are the sizes of each row, and `places` `(slots, tensors) int64` the bytes
    of `memory` at which its inputs, then its outputs begin.
    """

    def __init__(self, spec: ModelSpec, memory: mmap.mmap, dims: Rows, places: Rows) -> None:
        self.spec = spec
        self._memory = memory
        self._dims = dims
        self._places = places
        tensors = (*spec.inputs, *spec.outputs)
        self._dtypes = [array_dtype(tensor.dtype) for tensor in tensors]
        self.shapes = shapes_of(spec, tensors)
        self._strides = lru_cache(MOST_SHAPES)(self._bytes_of_row)

    def place(self, begin: int, slots: Sequence[int], sizes: Sizes) -> int:
        """Note that rows of these sizes lie in these slots, from this byte of the memory on; return where they end."""
        strides, places = self._strides(sizes), list[int]()
        for stride in strides:
            places.append(begin)
            begin += granules(len(slots) * stride)
        for slot in slots:
            self._dims[slot] = sizes
            self._places[slot] = places
            places = [place + stride for place, stride in zip(places, strides, strict=True)]
        return begin

    def bytes_of(self, rows: int, sizes: Sizes) -> int:
        """Return the bytes that `rows` rows of these sizes take."""
        return sum([granules(rows * stride) for stride in self._strides(sizes)])

    def length(self, sizes: Sizes) -> int:
        """Return the length of a row: the product of its sizes, at most what fits into a message."""
        return min(prod(sizes), MOST_LENGTH)

    def number(self, sizes: Sizes) -> int:
        """Return a number above 0 that is equal for equal sizes.

        Where dimensions have more sizes in all than there are such numbers, two may share one.
        """
        number = 0
        for dim, size in zip(self.spec.dims, sizes, strict=True):
            number = number * (dim.most + 1) + size
        return number & MOST_NUMBER

    def sizes(self, slots: Sequence[int]) -> tuple[Sizes, ...]:
        """Return the sizes of the rows in these slots."""
        return tuple([tuple(self._dims[slot].tolist()) for slot in slots])

    def row(self, slot: int, number: int) -> Rows:
        """Return a tensor of a row, by the number of the tensor: of inputs, then of outputs."""
        shape = self.shapes(tuple(self._dims[slot].tolist()))[number]
        return self._at(int(self._places[slot, number]), shape, number)

    def lie_together(self, slots: Sequence[int]) -> bool:
        """Return whether these rows have the same sizes and each follows the one before: those of one call do."""
        places, dims = self._places[slots[0]].tolist(), self._dims[slots[0]].tolist()
        strides = self._strides(tuple(dims))
        for slot in slots[1:]:
            places = [place + stride for place, stride in zip(places, strides, strict=True)]
            if self._places[slot].tolist() != places or self._dims[slot].tolist() != dims:
                return False
        return True

    def views(self, slots: Sequence[int]) -> tuple[Tensors, Tensors]:
        """Return inputs and outputs of rows that lie together, each `(N, *shape)`."""
        shapes, places = self.shapes(tuple(self._dims[slots[0]].tolist())), self._places[slots[0]].tolist()
        each = enumerate(zip(places, shapes, strict=True))
        found = tuple([self._at(place, (len(slots), *shape), number) for number, (place, shape) in each])
        inputs = len(self.spec.inputs)
        return found[:inputs], found[inputs:]

    def padded(self, slots: Sequence[int], sizes: Sequence[Sizes]) -> Tensors:
        """Return the inputs of rows of these sizes, padded, each `(B, *shape of the longest)`.

        They are views of the memory if nothing has to be padded or gathered.
        """
        if self.lie_together(slots):
            return self.views(slots)[0]
        shapes = self.shapes(longest(sizes))
        found = tuple(
            [
                np.full((len(slots), *shapes[number]), tensor.padding or 0, self._dtypes[number])
                for number, tensor in enumerate(self.spec.inputs)
            ]
        )
        for place, (slot, own) in enumerate(zip(slots, sizes, strict=True)):
            begins, shapes = self._places[slot].tolist(), self.shapes(own)
            for number, whole in enumerate(found):
                whole[place, ...][front(shapes[number])] = self._at(begins[number], shapes[number], number)
        return found

    def first(self, slots: Sequence[int]) -> Rows:
        """Return the first input of the rows in these slots, as `padded` does."""
        return self.padded(slots, self.sizes(slots))[0]

    def check(self, outputs: Sequence[Rows], sizes: Sequence[Sizes]) -> None:
        """Raise `ValueError` if outputs `(B, ...)` do not have the shapes specified for rows of these sizes."""
        wanted = self.shapes(longest(sizes))[len(self.spec.inputs) :]
        if (found := tuple([output.shape[1:] for output in outputs])) != wanted:
            raise ValueError(f"outputs for rows of sizes {longest(sizes)} have shapes {found}, not {wanted}")

    def write(self, slot: int, outputs: Sequence[Rows]) -> None:
        """Write outputs into a slot, the first ones or all, without the padding that they have beyond its own sizes."""
        begins, shapes = self._places[slot].tolist(), self.shapes(tuple(self._dims[slot].tolist()))
        for number, output in enumerate(outputs, len(self.spec.inputs)):
            shape = shapes[number]
            self._at(begins[number], shape, number)[...] = output if output.shape == shape else output[front(shape)]

    def _at(self, begin: int, shape: Shape, number: int) -> Rows:
        return np.ndarray(shape, self._dtypes[number], self._memory, begin)

    def _bytes_of_row(self, sizes: Sizes) -> tuple[int, ...]:
        each = zip(self.shapes(sizes), self._dtypes, strict=True)
        return tuple([prod(shape) * dtype.itemsize for shape, dtype in each])


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The slots of one model: arrays `(slots, *shape)`, in the order of its inputs and outputs.

    `versions`, `(slots,) int32`, is the version of the learned caches that each answer was given by, as a number
    (`adaptation.controller.number_of`), and `promised`, `(slots,) float32`, the fidelity that it was given with; they
    have no slots where the model has no learned caches. Where rows differ in size, there are no arrays: they are
    `sized`.
    """

    inputs: tuple[Rows, ...]
    outputs: tuple[Rows, ...]
    versions: Rows
    promised: Rows
    sized: SizedSlots | None = None

    def one(self, slot: int) -> tuple[Tensors, Tensors]:
        """Return inputs and outputs of a slot, each `(1, *shape)`."""
        if self.sized is not None:
            return self.sized.views((slot,))
        inputs, outputs = (tuple([rows[slot : slot + 1] for rows in some]) for some in (self.inputs, self.outputs))
        return inputs, outputs


def shapes_of(spec: ModelSpec, tensors: Sequence[TensorSpec]) -> Shapes:
    """Return a cached function from the sizes of a row to the shapes of these tensors of a model."""
    names = [dim.name for dim in spec.dims]

    def found(sizes: Sizes) -> tuple[Shape, ...]:
        dims = dict(zip(names, sizes, strict=True))
        return tuple([tensor.shape_of(dims) for tensor in tensors])

    return lru_cache(MOST_SHAPES)(found)


def front(shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of the part of a padded row that a row of this shape takes."""
    return tuple([slice(size) for size in shape])


def longest(sizes: Sequence[Sizes]) -> Sizes:
    """Return the largest size of each dimension in any of these rows."""
    return sizes[0] if len(sizes) == 1 else tuple(map(max, zip(*sizes, strict=True)))


class SlotMemory:
    """Maps the shared file `fd` as the slots of `models`; `rows` gives the number of rows of each model by name.

    The file must be large enough (`file_bytes`). Both processes see the same rows if they pass the same models in the
    same order. `arrays` are the bytes before those of extents. In the engine, `owners` has the running request of each
    slot.
    """

    def __init__(self, fd: int, models: Sequence[ModelSpec], rows: Mapping[str, int]) -> None:
        self._memory = mmap.mmap(fd, file_bytes(models, rows))
        self.owners = Owners()
        offset, found = 0, list[ModelSlots]()
        for spec in models:
            arrays = list[Rows]()
            for tensor, count in _arrays(spec, rows[spec.name]):
                flat = np.frombuffer(self._memory, array_dtype(tensor.dtype), count * prod(tensor.shape), offset)
                arrays.append(flat.reshape(count, *tensor.shape))
                offset += _aligned(count * tensor.row_bytes)
            *arrays, versions, promised = arrays
            inputs = len(spec.inputs)
            if spec.dims:
                found.append(ModelSlots((), (), versions, promised, SizedSlots(spec, self._memory, *arrays)))
            else:
                found.append(ModelSlots(tuple(arrays[:inputs]), tuple(arrays[inputs:]), versions, promised))
        self._begin = _whole_pages(offset)
        self.arrays = np.frombuffer(self._memory, np.uint8, self._begin)
        self.models = tuple(found)
        self.by_name = {spec.name: slots for spec, slots in zip(models, self.models, strict=True)}
        self.specs = {spec.name: spec for spec in models}

    def extents(self) -> "Extents":
        """Return the memory behind the arrays, in one hole, for the process that takes extents of it."""
        return Extents(self._begin, len(self._memory) - self._begin, self._give_back)

    def _give_back(self, begin: int, size: int) -> None:
        with suppress(OSError):  # a kernel without support keeps the pages, and they are used again
            self._memory.madvise(mmap.MADV_REMOVE, begin, size)


def file_bytes(models: Sequence[ModelSpec], rows: Mapping[str, int]) -> int:
    """Return the size of the shared file in bytes, at least one page.

    Pages are allocated when they are first written to. Those of arrays stay allocated. Extents have room for the
    largest row in every slot.
    """
    arrays = [each for spec in models for each in _arrays(spec, rows[spec.name])]
    begin = _whole_pages(sum(_aligned(count * tensor.row_bytes) for tensor, count in arrays))
    extents = sum(rows[spec.name] * _most_bytes(spec) for spec in models if spec.dims)
    return max(mmap.PAGESIZE, begin + _whole_pages(extents))


def _most_bytes(spec: ModelSpec) -> int:
    """Return the most bytes that a row takes in an extent: an output may be largest where an input is smallest."""
    found = []
    for sizes in product(*[(dim.least, dim.most) for dim in spec.dims]):
        dims = {dim.name: size for dim, size in zip(spec.dims, sizes, strict=True)}
        tensors = (*spec.inputs, *spec.outputs)
        found.append(sum(granules(prod(one.shape_of(dims)) * ITEM_BYTES[one.dtype]) for one in tensors))
    return max(found)


def create_file() -> int:
    """Return the descriptor of an empty, nameless file in memory; it vanishes when the last process closes it."""
    return os.memfd_create("latebind-engine")


def granules(size: int) -> int:
    """Return `size` rounded up to whole granules, as it is taken in an extent."""
    return -(-size // GRANULE) * GRANULE


def _arrays(spec: ModelSpec, rows: int) -> Iterator[tuple[TensorSpec, int]]:
    """Yield the arrays of a model as they lie in the file, each with its number of rows."""
    tensors = (*spec.inputs, *spec.outputs)
    if spec.dims:
        yield TensorSpec("dims", "int32", (len(spec.dims),)), rows
        yield TensorSpec("places", "int64", (len(tensors),)), rows
    else:
        yield from ((tensor, rows) for tensor in tensors)
    yield from ((tensor, rows if spec.lookups else 0) for tensor in (VERSION, PROMISED))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class Extents:
    """Extents of the `size` bytes from `first` on, whole pages, taken and freed in any order.

    The smallest hole that is large enough is taken (best fit), which keeps large ones whole and their pages untouched.
    `give_back(first byte, bytes)` is called for whole unused pages; they may still be used again. `taken` are the bytes
    of all extents.
    """

    def __init__(self, first: int, size: int, give_back: Callable[[int, int], None]) -> None:
        self.first = first
        self.size = size
        self.taken = 0
        self._give_back = give_back
        self._extents: dict[int, tuple[int, int]] = {}  # first byte -> bytes, and how many shares are still to be freed
        self._holes: list[tuple[int, int]] = []  # bytes and first byte, ascending
        self._begins: dict[int, int] = {}  # of holes: first byte -> bytes
        self._ends: dict[int, int] = {}  # of holes: the byte behind the last -> first byte
        self._touched = bytearray((first + size) // mmap.PAGESIZE)  # 1 where a page may be in memory
        self._pages = 0  # that may be in memory
        self._idle = 0  # of these, how many lie within holes
        if size:
            self._add_hole(first, size)

    @property
    def there(self) -> int:
        """The bytes of the pages that may be in memory."""
        return self._pages * mmap.PAGESIZE

    def take(self, size: int, shares: int = 1) -> int | None:
        """Return the first byte of a new extent, or None if there is no room; it is to be freed once for each share."""
        size = max(GRANULE, granules(size))
        place = bisect_left(self._holes, (size, 0))
        if place == len(self._holes):
            return None
        whole, begin = self._holes[place]
        self._drop_hole(begin, whole)
        if whole > size:
            self._add_hole(begin + size, whole - size)
        self._extents[begin] = size, shares
        self.taken += size
        first, end = _pages_of(begin, size)
        were, past = _pages_within(begin, whole)
        self._idle -= self._touched.count(1, were, min(end, past))
        self._pages += end - first - self._touched.count(1, first, end)
        self._touched[first:end] = b"\1" * (end - first)
        return begin

    def free(self, begin: int) -> None:
        """Free a share of the extent that begins here, and with the last one the extent. Raises `KeyError`."""
        size, shares = self._extents.pop(begin)
        if shares > 1:
            self._extents[begin] = size, shares - 1
            return
        self.taken -= size
        first, past = _pages_of(begin, size)
        end = begin + size
        if (before := self._ends.get(begin)) is not None:
            self._drop_hole(before, begin - before)
            begin = before
        if (after := self._begins.get(end)) is not None:
            self._drop_hole(end, after)
            end += after
        self._add_hole(begin, end - begin)
        free, free_past = _pages_within(begin, end - begin)
        self._idle += max(0, min(past, free_past) - max(first, free))
        if self._idle * mmap.PAGESIZE > max(KEPT, self.taken // KEPT_SHARE):
            self._give_back_pages()

    def _give_back_pages(self) -> None:
        for size, begin in self._holes[bisect_left(self._holes, (mmap.PAGESIZE, 0)) :]:
            page, end = _pages_within(begin, size)
            while (page := self._touched.find(1, page, end)) >= 0:
                past = self._touched.find(0, page, end)
                past = end if past < 0 else past
                self._give_back(page * mmap.PAGESIZE, (past - page) * mmap.PAGESIZE)
                self._touched[page:past] = bytes(past - page)
                self._pages -= past - page
                page = past
        self._idle = 0

    def _add_hole(self, begin: int, size: int) -> None:
        insort(self._holes, (size, begin))
        self._begins[begin] = size
        self._ends[begin + size] = begin

    def _drop_hole(self, begin: int, size: int) -> None:
        del self._holes[bisect_left(self._holes, (size, begin))], self._begins[begin], self._ends[begin + size]

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        extents = {begin: size for begin, (size, _) in self._extents.items()}
        end, was_hole = self.first, False
        for begin, size in sorted([*extents.items(), *self._begins.items()]):
            assert begin == end, "extents overlap, or bytes are lost"
            assert not (was_hole and begin in self._begins), "two holes lie side by side"
            end, was_hole = begin + size, begin in self._begins
        assert end == self.first + self.size, "bytes are lost at the end"
        assert self._holes == sorted([(size, begin) for begin, size in self._begins.items()]), "the holes are off"
        assert self.taken == sum(extents.values()), "the count of bytes is off"
        used = {page for begin, size in extents.items() for page in range(*_pages_of(begin, size))}
        touched = {page for page, there in enumerate(list(self._touched)) if there}
        assert used <= touched, "a page that is used was given back"
        assert (len(touched), len(touched - used)) == (self._pages, self._idle), "the count of pages is off"


NO_EXTENTS = Extents(0, 0, lambda begin, size: None)


def _pages_of(begin: int, size: int) -> tuple[int, int]:
    """Return the first page that has some of these bytes, and the one after the last."""
    return begin // mmap.PAGESIZE, -(-(begin + size) // mmap.PAGESIZE)


def _pages_within(begin: int, size: int) -> tuple[int, int]:
    """Return the first page that has only these bytes, and the one after the last; there may be none."""
    return -(-begin // mmap.PAGESIZE), (begin + size) // mmap.PAGESIZE
