"""Rows that differ in size: extents never overlap or leak, pages come and go, and both processes see the same rows."""

import mmap
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.model import TensorSpec
from latebind.engine.slots import KEPT, Extents, SizedSlots, SlotMemory
from tests.engine.lengths import LONGEST, WIDTH, mapped, spec_of

SLOTS = 4096


class Taken:
    """Extents in real memory, each filled with numbers of its own."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.given_back = 0
        self.extents = Extents(0, size, self.give_back)
        self.live: dict[int, tuple[int, int]] = {}  # first byte -> bytes, and shares that are left
        self._number = 0

    def give_back(self, begin: int, size: int) -> None:
        assert begin % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        self.given_back += size
        self.memory.madvise(mmap.MADV_REMOVE, begin, size)

    def take(self, size: int, shares: int) -> None:
        begin = self.extents.take(size, shares)
        if begin is None:
            assert size > self.extents.size - self.extents.taken or len(self.live) > 1, "there was room"
            return
        assert begin not in self.live
        self._number += 1
        self.live[begin] = size, shares
        self.memory[begin : begin + size] = self.filled(begin)

    def filled(self, begin: int) -> bytes:
        return bytes([1 + begin // 16 % 251]) * self.live[begin][0]

    def free(self, begin: int) -> None:
        size, shares = self.live[begin]
        assert self.memory[begin : begin + size] == self.filled(begin), "others wrote there, or its pages were lost"
        self.extents.free(begin)
        if shares > 1:
            self.live[begin] = size, shares - 1
        else:
            del self.live[begin]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_extents_never_overlap_or_leak_and_keep_what_is_in_them(data: st.DataObject) -> None:
    taken = Taken(16 * mmap.PAGESIZE)
    for take in data.draw(st.lists(st.booleans(), max_size=60)):
        if take:
            taken.take(data.draw(st.integers(0, 5 * mmap.PAGESIZE)), data.draw(st.integers(1, 3)))
        elif taken.live:
            taken.free(data.draw(st.sampled_from(sorted(taken.live))))
        taken.extents.check()
    for begin, (_, shares) in list(taken.live.items()):
        for _ in range(shares):
            taken.free(begin)
    taken.extents.check()
    assert taken.extents.taken == 0
    assert taken.extents.take(taken.extents.size) == 0, "all is one hole again"


def test_pages_without_extents_are_given_back_once_there_are_many() -> None:
    taken = Taken(4 * KEPT)
    for size in (KEPT, KEPT, mmap.PAGESIZE):
        taken.take(size, 1)
    taken.free(0)
    assert (taken.extents.there, taken.given_back) == (2 * KEPT + mmap.PAGESIZE, 0), "the next rows take these"
    taken.free(KEPT)
    assert (taken.extents.there, taken.given_back) == (mmap.PAGESIZE, 2 * KEPT)
    taken.extents.check()
    with pytest.raises(KeyError):
        taken.extents.free(KEPT)


def held(file: int) -> int:
    """Return the bytes that a file takes in memory."""
    return 512 * os.fstat(file).st_blocks


@pytest.mark.parametrize("spread", [0.4, 1.0])
def test_thousands_of_slots_take_the_bytes_of_the_rows_under_way_and_little_more(spread: float) -> None:
    random = np.random.default_rng(0)
    spec = spec_of()
    with mapped(spec, slots=SLOTS) as (memory, extents, file):
        sized, places, rows = memory.models[0].sized, dict[int, int](), dict[int, int]()
        assert sized is not None

        def claim(slot: int) -> None:
            size = (int(np.clip(random.lognormal(3.0, spread), 1, LONGEST)),)
            rows[slot] = sum(row_bytes(size[0]))
            begin = extents.take(sized.bytes_of(1, size))
            assert begin is not None
            places[slot] = begin
            sized.place(begin, (slot,), size)
            for number in range(4):
                sized.row(slot, number)[...] = slot % 100 + number

        for slot in range(SLOTS):
            claim(slot)
        arrays = memory.arrays.nbytes
        for _ in range(20):
            for slot in random.integers(SLOTS, size=SLOTS // 4).tolist():
                assert [int(sized.row(slot, number).max()) for number in range(4)] == [slot % 100 + n for n in range(4)]
                extents.free(places[slot])
                claim(slot)
            assert held(file) <= 1.25 * (sum(rows.values())) + KEPT + arrays
            assert held(file) <= extents.there + arrays
        extents.check()
        for slot in range(SLOTS):
            extents.free(places[slot])
        assert held(file) <= KEPT + arrays


def row_bytes(length: int) -> tuple[int, ...]:
    return 8 * length, 8 * length, 4 * 2 * length * WIDTH, 4 * WIDTH


def laid(slots: SizedSlots, extents: Extents, numbers: tuple[int, ...], size: int) -> None:
    begin = extents.take(slots.bytes_of(len(numbers), (size,)), len(numbers))
    assert begin is not None
    assert slots.place(begin, numbers, (size,)) <= begin + extents.taken


def test_two_mappings_see_the_same_rows_of_their_own_sizes_and_none_overlap() -> None:
    specs = spec_of("one"), spec_of("two", longest=9)
    with mapped(*specs, slots=8) as (ours, extents, file):
        theirs = SlotMemory(file, specs, {"one": 8, "two": 8})
        calls = [(0, (1,), 512), (0, (2, 5), 3), (1, (7,), 1), (0, (0, 3, 4), 17), (1, (0, 1), 9)]
        for model, slots, size in calls:
            sized = ours.models[model].sized
            assert sized is not None
            laid(sized, extents, slots, size)
        number = 0
        for view, check in ((ours, False), (theirs, True)):
            number = 0
            for model, slots, size in calls:
                sized = view.models[model].sized
                assert sized is not None
                assert sized.sizes(slots) == ((size,),) * len(slots)
                for slot in slots:
                    rows = [sized.row(slot, tensor) for tensor in range(4)]
                    assert [row.shape for row in rows] == [(size,), (size,), (2 * size, WIDTH), (WIDTH,)]
                    for row in rows:
                        number += 1
                        assert not check or (row == number).all()
                        row[...] = number


def test_there_is_room_for_rows_whose_output_is_largest_where_their_input_is_smallest() -> None:
    left = TensorSpec("left", "float32", (1, WIDTH), sizes=(f"{LONGEST + 1} - L", WIDTH))
    spec = replace(spec_of(), outputs=(left,))
    with mapped(spec, slots=8) as (ours, extents, _):
        (sized,) = [slots.sized for slots in ours.models]
        assert sized is not None
        for size in (1, LONGEST):
            begin = extents.take(sized.bytes_of(8, (size,)))
            assert begin is not None
            extents.free(begin)


def test_a_batch_is_padded_to_its_longest_row_and_rows_of_one_call_are_a_view() -> None:
    spec = spec_of()
    with mapped(spec, slots=8) as (memory, extents, _):
        sized = memory.models[0].sized
        assert sized is not None
        laid(sized, extents, (0, 1), 3)
        laid(sized, extents, (2,), 5)
        laid(sized, extents, (3,), 3)
        for slot in range(4):
            sized.row(slot, 0)[...] = slot + 1
            sized.row(slot, 1)[...] = 1
        ids, mask = sized.padded((2, 0, 3), sized.sizes((2, 0, 3)))
        assert ids.tolist() == [[3] * 5, [1, 1, 1, 0, 0], [4, 4, 4, 0, 0]]
        assert mask.tolist() == [[1] * 5, [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
        ids, _ = sized.padded((0, 1), sized.sizes((0, 1)))
        assert np.shares_memory(ids, sized.row(1, 0))
        apart, _ = sized.padded((1, 3), sized.sizes((1, 3)))
        assert apart.tolist() == [[2] * 3, [4] * 3]
        assert not np.shares_memory(apart, sized.row(1, 0))


def test_outputs_are_cut_to_each_row_and_must_have_the_shapes_that_are_said() -> None:
    with mapped(spec_of(), slots=2) as (memory, extents, _):
        sized = memory.models[0].sized
        assert sized is not None
        laid(sized, extents, (0,), 1)
        laid(sized, extents, (1,), 2)
        words, text = np.arange(8 * WIDTH, dtype=np.float32).reshape(2, 4, WIDTH), np.ones((2, WIDTH), np.float32)
        sized.check((words, text), ((1,), (2,)))
        for slot in range(2):
            sized.write(slot, (words[slot], text[slot]))
        assert sized.row(0, 2).tolist() == words[0, :2].tolist()
        assert sized.row(1, 2).tolist() == words[1].tolist()
        with pytest.raises(ValueError, match="have shapes"):
            sized.check((words[:, :1], text), ((1,), (2,)))
