"""Who has which slot and how far each is: a ring of slots, after the memory pool of Ebird (section V, table I). Pure.

Of table I, an entry's serial number is its request, the number of the slot says where its input and its output lie, and
the two events are the phases READY and ANSWERED.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from itertools import chain, islice
from typing import Final

from latebind.domain.errors import IllegalEvent

NOBODY = 0


class Phase(IntEnum):
    """How far a slot is."""

    FREE = 0
    FILLING = 1  # its owner writes the input
    READY = 2  # the input is complete and the engine has heard of it
    ANSWERED = 3  # the engine has ended it; what the owner wants of it still lies there
    LEFT = 4  # the owner has gone, but the engine may read and write the slot until it says that it ended


class Step(IntEnum):
    """What may happen to a slot that is not free."""

    SEND = auto()  # the owner tells the engine
    END = auto()  # the engine says that the request ended
    LEAVE = auto()  # the owner needs the slot no more


MOVES: dict[tuple[int, Step], Phase] = {
    (Phase.FILLING, Step.SEND): Phase.READY,
    (Phase.FILLING, Step.LEAVE): Phase.FREE,
    (Phase.READY, Step.END): Phase.ANSWERED,
    (Phase.READY, Step.LEAVE): Phase.LEFT,
    (Phase.ANSWERED, Step.LEAVE): Phase.FREE,
    (Phase.LEFT, Step.END): Phase.FREE,
}


STEPS: Final = 1 + len(Step)
# What follows phase and step, None where nothing does: in one row, where a number finds it sooner than a key.
AFTER: Final = [MOVES.get((phase, Step(step))) if step else None for phase in Phase for step in range(STEPS)]
FREE: Final = Phase.FREE  # to look a member up in its class takes ten times as long
FILLING: Final = Phase.FILLING


class Pool:
    """The slots of one model. Requests are numbers above 0, each used once; a slot has one of them or none."""

    def __init__(self, slots: int) -> None:
        self._phases = bytearray(slots)
        self._owners = [NOBODY] * slots
        self._free = slots
        self._next = 0

    def __len__(self) -> int:
        return len(self._phases)

    @property
    def free(self) -> int:
        """How many slots nobody has."""
        return self._free

    def phase(self, slot: int) -> Phase:
        """Return how far a slot is."""
        return Phase(self._phases[slot])

    def claim(self, requests: Sequence[int]) -> tuple[int, ...] | None:
        """Give each of the requests (one at least) a slot to fill, in order; None where too few are free.

        The slots follow each other and those given before, where these are free: a batch of them is a view. Where the
        one before is free again there is nobody to be beside: then the first that are free are taken, for the caches
        still have the rows that were used last.
        """
        wanted = len(requests)
        if wanted > self._free:
            return None
        if self._phases[self._next - 1] == FREE:
            self._next = 0
        if wanted == 1:  # most calls
            return (self._claim_one(requests[0]),)
        slots = self._together(wanted) or self._scattered(wanted)
        for slot, request in zip(slots, requests, strict=True):
            self._phases[slot] = FILLING
            self._owners[slot] = request
        self._free -= wanted
        self._next = slots[-1] + 1
        return slots

    def move(self, slot: int, request: int, step: Step) -> Phase:
        """Take a step of the request that has the slot and return the new phase.

        Raises `IllegalEvent`, with nothing changed, where another has the slot or the step does not follow.
        """
        after = AFTER[self._phases[slot] * STEPS + step]
        if after is None or self._owners[slot] != request:
            has = f"{self._owners[slot]} has it, {self.phase(slot).name}"
            raise IllegalEvent(f"request {request} cannot {step.name} slot {slot}: {has}")
        self._phases[slot] = after
        if after is FREE:
            self._owners[slot] = NOBODY
            self._free += 1
        return after

    def check(self) -> None:
        """Raise `AssertionError` where a slot has no single owner, a free one has any, or the count is wrong."""
        owners = [owner for owner in self._owners if owner != NOBODY]
        assert len(set(owners)) == len(owners), "a request has two slots"
        assert self._free == len(self) - len(owners), "the count of free slots is wrong"
        for phase, owner in zip(self._phases, self._owners, strict=True):
            assert (phase == Phase.FREE) == (owner == NOBODY), "a slot is taken by nobody or free with an owner"

    def _claim_one(self, request: int) -> int:
        """Give a request the next slot that is free; there is one."""
        slot = self._phases.find(FREE, self._next)
        if slot < 0:
            slot = self._phases.find(FREE)
        self._phases[slot] = FILLING
        self._owners[slot] = request
        self._free -= 1
        self._next = slot + 1
        return slot

    def _together(self, wanted: int) -> tuple[int, ...]:
        """Return slots that follow each other, from where the last ones were given on; none where there are none."""
        run = bytes(wanted)  # of phases that are FREE
        first = self._phases.find(run, self._next)
        if first < 0:
            first = self._phases.find(run)
        return tuple(range(first, first + wanted)) if first >= 0 else ()

    def _scattered(self, wanted: int) -> tuple[int, ...]:
        around = chain(range(self._next, len(self)), range(self._next))
        return tuple(islice((slot for slot in around if self._phases[slot] == Phase.FREE), wanted))
