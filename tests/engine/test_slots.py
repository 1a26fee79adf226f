"""Slots: the same rows from two mappings, and no slot ever has two owners."""

import os
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from latebind.domain.errors import IllegalEvent
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.claim import TRANSITIONS, Move, Phase, Pool
from latebind.engine.slots import SlotMemory, create_file, file_bytes

SLOTS = 8


def let_go(pool: Pool, slots: Iterable[int], first: int) -> None:
    """Break off the requests numbered from `first` on that have these slots."""
    for request, slot in enumerate(slots, first):
        pool.move(slot, request, Move.RELEASE)


def test_requests_that_follow_each_other_get_slots_that_follow_each_other() -> None:
    pool = Pool(SLOTS)
    assert [pool.claim(requests) for requests in ([1], [2, 3], [4])] == [(0,), (1, 2), (3,)]


def test_the_ring_goes_on_behind_the_last_and_comes_back_to_what_is_free() -> None:
    pool = Pool(4)
    pool.claim([1, 2, 3])
    let_go(pool, (0, 1), 1)
    assert pool.claim([4]) == (3,)
    assert pool.claim([5, 6]) == (0, 1)


def test_a_slot_freed_out_of_order_is_used_where_nothing_else_is_left() -> None:
    pool = Pool(4)
    pool.claim([1, 2, 3, 4])
    for slot, request in ((1, 2), (3, 4)):
        pool.move(slot, request, Move.RELEASE)
    assert pool.claim([5, 6]) == (1, 3)
    assert pool.claim([7]) is None


def test_several_rows_lie_together_where_they_can_even_if_single_slots_come_first() -> None:
    pool = Pool(6)
    pool.claim([1, 2, 3, 4, 5, 6])
    for slot, request in ((0, 1), (2, 3), (3, 4), (4, 5)):
        pool.move(slot, request, Move.RELEASE)
    assert pool.claim([7, 8, 9]) == (2, 3, 4)


def test_who_has_nobody_to_be_beside_gets_rows_that_the_caches_have() -> None:
    pool = Pool(SLOTS)
    pool.claim([1])
    for request in (2, 3, 4):
        assert pool.claim([request]) == (1,)
        pool.move(1, request, Move.RELEASE)


def test_a_slot_whose_owner_has_gone_is_free_when_the_engine_says_so_and_not_before() -> None:
    pool = Pool(1)
    pool.claim([1])
    pool.move(0, 1, Move.SEND)
    assert pool.move(0, 1, Move.RELEASE) is Phase.ABANDONED
    assert pool.claim([2]) is None
    assert pool.move(0, 1, Move.END) is Phase.FREE
    assert pool.claim([2]) == (0,)


def test_nobody_moves_the_slot_of_another() -> None:
    pool = Pool(SLOTS)
    pool.claim([1, 2])
    with pytest.raises(IllegalEvent, match="request 1 cannot SEND slot 1: 2 has it, FILLING"):
        pool.move(1, 1, Move.SEND)
    assert pool.phase(1) is Phase.FILLING


class Requests(RuleBasedStateMachine):
    """Any order of calls, sent, ended and left, also wrong ones; `held` is what should be the case."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(SLOTS)
        self.held: dict[int, tuple[int, Phase]] = {}  # slot: request, phase
        self.count = 0

    @rule(wanted=st.integers(1, SLOTS))
    def claim(self, wanted: int) -> None:
        requests = range(self.count + 1, self.count + wanted + 1)
        free = SLOTS - len(self.held)
        slots = self.pool.claim(requests)
        assert (slots is None) == (wanted > free)
        if slots is None:
            return
        assert len(set(slots)) == wanted
        assert not set(slots) & self.held.keys()
        runs = [
            start for start in range(SLOTS - wanted + 1) if not set(range(start, start + wanted)) & self.held.keys()
        ]
        assert not runs or slots == tuple(range(slots[0], slots[0] + wanted))
        self.count += wanted
        self.held |= {slot: (request, Phase.FILLING) for slot, request in zip(slots, requests, strict=True)}

    @precondition(lambda self: self.held)
    @rule(data=st.data(), move=st.sampled_from(Move))
    def move(self, data: st.DataObject, move: Move) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        request, phase = self.held[slot]
        after = TRANSITIONS.get((phase, move))
        if after is None:
            with pytest.raises(IllegalEvent):
                self.pool.move(slot, request, move)
            return
        assert self.pool.move(slot, request, move) is after
        if after is Phase.FREE:
            del self.held[slot]
        else:
            self.held[slot] = request, after

    @rule(slot=st.integers(0, SLOTS - 1), move=st.sampled_from(Move))
    def move_by_somebody_else(self, slot: int, move: Move) -> None:
        with pytest.raises(IllegalEvent):
            self.pool.move(slot, self.count + 1, move)

    @invariant()
    def the_pool_is_as_it_should_be(self) -> None:
        self.pool.check()
        assert self.pool.free == SLOTS - len(self.held)
        for slot in range(SLOTS):
            assert self.pool.phase(slot) is (self.held[slot][1] if slot in self.held else Phase.FREE)


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


ROWS = {"a": 9, "b": 5}
SPECS = [
    ModelSpec("a", "1", (TensorSpec("x", "float32", (3, 5)),), (TensorSpec("y", "float32", (2,)),), 1, 4),
    ModelSpec(
        "b", "1", (TensorSpec("p", "int64", ()), TensorSpec("q", "bool", (7,))), (TensorSpec("y", "uint8", (1,)),), 1, 4
    ),
]


def test_two_mappings_see_the_same_rows_and_no_rows_overlap() -> None:
    fd = create_file()
    os.ftruncate(fd, file_bytes(SPECS, ROWS))
    ours, theirs = SlotMemory(fd, SPECS, ROWS), SlotMemory(fd, SPECS, ROWS)
    os.close(fd)
    written = [rows for model in ours.models for rows in (*model.inputs, *model.outputs)]
    random = np.random.default_rng(0)
    values = [(random.random(rows.shape) * 2).astype(rows.dtype) for rows in written]
    for rows, value in zip(written, values, strict=True):
        rows[...] = value
    seen = [rows for model in theirs.models for rows in (*model.inputs, *model.outputs)]
    assert [rows.shape for rows in seen] == [(9, 3, 5), (9, 2), (5,), (5, 7), (5, 1)]
    for rows, value in zip(seen, values, strict=True):
        np.testing.assert_array_equal(rows, value)
