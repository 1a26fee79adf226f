"""Ownership and phase of each slot: a ring of slots, after Ebird's memory pool (section V, table I). Pure.

An entry of table I corresponds to a slot: its serial number is the request, its input and output pointers are the
number of the slot, and its two events are the phases READY and ANSWERED.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from itertools import chain, islice
from typing import Final

from latebind.domain.errors import IllegalEvent

NOBODY = 0


class Phase(IntEnum):
    """How far the request in a slot has come."""

    FREE = 0
    FILLING = 1  # the owner writes the input
    READY = 2  # the input is complete and has been sent to the engine
    ANSWERED = 3  # the engine has ended the request; the owner may still read the outputs
    ABANDONED = 4  # the owner has released it, but the engine may use it until it reports the request's end


class Move(IntEnum):
    """What may happen to a slot that is not free."""

    SEND = auto()  # the owner sends the request to the engine
    END = auto()  # the engine reports the end of the request
    RELEASE = auto()  # the owner needs the slot no longer


TRANSITIONS: dict[tuple[int, Move], Phase] = {
    (Phase.FILLING, Move.SEND): Phase.READY,
    (Phase.FILLING, Move.RELEASE): Phase.FREE,
    (Phase.READY, Move.END): Phase.ANSWERED,
    (Phase.READY, Move.RELEASE): Phase.ABANDONED,
    (Phase.ANSWERED, Move.RELEASE): Phase.FREE,
    (Phase.ABANDONED, Move.END): Phase.FREE,
}


MOVES: Final = 1 + len(Move)
# The table as one flat list by phase and move (None: illegal): an index is quicker than a dictionary key.
AFTER: Final = [TRANSITIONS.get((phase, Move(move))) if move else None for phase in Phase for move in range(MOVES)]
FREE: Final = Phase.FREE  # looking the member up in its class takes ten times as long
FILLING: Final = Phase.FILLING


class Pool:
    """The slots of one model. Requests are numbers above 0, each used once; a slot holds one request or none."""

    def __init__(self, slots: int) -> None:
        self._phases = bytearray(slots)
        self._owners = [NOBODY] * slots
        self._free = slots
        self._next = 0

    def __len__(self) -> int:
        return len(self._phases)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._free

    def phase(self, slot: int) -> Phase:
        """Return the phase of a slot."""
        return Phase(self._phases[slot])

    def claim(self, requests: Sequence[int]) -> tuple[int, ...] | None:
        """Give each of the requests (at least one) a slot to fill, in order; None if too few are free.

        The slots are contiguous, and follow those given before, if such slots are free: then a batch of them is a view.
        If the slot given last is free again, there is no batch to be contiguous with, and the search starts at slot 0:
        the processor's caches still hold the rows used last.
        """
        wanted = len(requests)
        if wanted > self._free:
            return None
        if self._phases[self._next - 1] == FREE:
            self._next = 0
        if wanted == 1:  # most calls
            return (self._claim_one(requests[0]),)
        slots = self._contiguous(wanted) or self._scattered(wanted)
        for slot, request in zip(slots, requests, strict=True):
            self._phases[slot] = FILLING
            self._owners[slot] = request
        self._free -= wanted
        self._next = slots[-1] + 1
        return slots

    def move(self, slot: int, request: int, move: Move) -> Phase:
        """Apply a move of the request that owns the slot and return the new phase.

        Raises `IllegalEvent`, changing nothing, if another request owns the slot or the move is illegal in its phase.
        """
        after = AFTER[self._phases[slot] * MOVES + move]
        if after is None or self._owners[slot] != request:
            has = f"{self._owners[slot]} has it, {self.phase(slot).name}"
            raise IllegalEvent(f"request {request} cannot {move.name} slot {slot}: {has}")
        self._phases[slot] = after
        if after is FREE:
            self._owners[slot] = NOBODY
            self._free += 1
        return after

    def check(self) -> None:
        """Raise `AssertionError` unless used slots have distinct owners, free ones none, and the count is right."""
        owners = [owner for owner in self._owners if owner != NOBODY]
        assert len(set(owners)) == len(owners), "a request has two slots"
        assert self._free == len(self) - len(owners), "the count of free slots is wrong"
        for phase, owner in zip(self._phases, self._owners, strict=True):
            assert (phase == Phase.FREE) == (owner == NOBODY), "a slot is taken by nobody or free with an owner"

    def _claim_one(self, request: int) -> int:
        """Give a request the next free slot; there is at least one."""
        slot = self._phases.find(FREE, self._next)
        if slot < 0:
            slot = self._phases.find(FREE)
        self._phases[slot] = FILLING
        self._owners[slot] = request
        self._free -= 1
        self._next = slot + 1
        return slot

    def _contiguous(self, wanted: int) -> tuple[int, ...]:
        """Return contiguous free slots, searched from the last one given; empty if there are none."""
        run = bytes(wanted)  # this many phases that are FREE
        first = self._phases.find(run, self._next)
        if first < 0:
            first = self._phases.find(run)
        return tuple(range(first, first + wanted)) if first >= 0 else ()

    def _scattered(self, wanted: int) -> tuple[int, ...]:
        around = chain(range(self._next, len(self)), range(self._next))
        return tuple(islice((slot for slot in around if self._phases[slot] == Phase.FREE), wanted))
