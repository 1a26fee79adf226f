"""What crosses between door and engine: messages of fixed size, tensors never. No pickle."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct

import msgspec

from latebind.domain.actions import Outcome, Reply, StepEnded
from latebind.domain.events import Arrived, Cancelled

TO_ENGINE = Struct("<BBBxHIIIQd")  # kind, more follows, priority, model, trace, slot, steps of input, request, deadline
TO_DOOR = Struct("<BxhhHQff")  # outcome, stage, node, option, request, two times in seconds
OUTCOMES = tuple(Outcome)  # by their numbers: calling the class takes five times as long
Numbers = tuple[int, ...]
Call = tuple[str, float, Numbers, Numbers, Numbers, Numbers, int, int]  # an `Arrived` before it says what is next
NO_STEP = -1  # the node of a message that tells of a request, whose times are those that it waited and ran


class Kind(IntEnum):
    """The messages from door to engine."""

    ARRIVED = 0
    CANCELLED = 1


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The engine's word that a request has ended; its outputs lie in its slot if the outcome is ANSWERED."""

    request: int
    outcome: Outcome
    stage: int
    waited: float
    ran: float


class Stepped(msgspec.Struct, frozen=True, gc=False):
    """The engine's word that a step of a query has ended: `node`, with the model that is its `option`, at `stage`.

    `budget` and `spent` are the seconds that it was planned to take and took.
    """

    request: int
    node: int
    option: int
    outcome: Outcome
    stage: int
    budget: float
    spent: float


def pack_arrived(
    model: int,
    deadline: float,
    requests: Sequence[int],
    slots: Sequence[int],
    inputs: Sequence[int] = (),
    priority: int = 0,
    trace: int = 0,
) -> bytes:
    """Write one call: a message for each of its requests, all but the last marked as to be continued.

    `inputs` are the steps of the input of each, 1 where they are left out.
    """
    last = len(requests) - 1
    if not last and not inputs:  # most calls
        return TO_ENGINE.pack(Kind.ARRIVED, False, priority, model, trace, slots[0], 1, requests[0], deadline)
    return b"".join(
        TO_ENGINE.pack(Kind.ARRIVED, i < last, priority, model, trace, slot, steps, request, deadline)
        for i, (request, slot, steps) in enumerate(zip(requests, slots, inputs or (1,) * (last + 1), strict=True))
    )


def pack_cancelled(request: int) -> bytes:
    """Write that the client of `request` has gone."""
    return TO_ENGINE.pack(Kind.CANCELLED, False, 0, 0, 0, 0, 0, request, 0.0)


def pack_ended(ended: Reply | Ended) -> bytes:
    """Write that a request has ended."""
    return TO_DOOR.pack(ended.outcome, ended.stage, NO_STEP, 0, ended.request, ended.waited, ended.ran)


def pack_stepped(step: StepEnded | Stepped) -> bytes:
    """Write that a step of a query has ended."""
    return TO_DOOR.pack(step.outcome, step.stage, step.node, step.option, step.request, step.budget, step.spent)


class EventReader:
    """Turns the bytes from the door into events; keeps what is incomplete until the rest comes."""

    def __init__(self, models: list[str]) -> None:
        self._models = models
        self._bytes = b""
        self._rows: list[tuple[int, int, int]] = []

    def feed(self, data: bytes) -> Iterator[Arrived | Cancelled]:
        """Yield the events that `data` completes; a call says so where another of its model is next."""
        self._bytes, whole = _split(self._bytes + data, TO_ENGINE.size)
        call: Call | None = None
        for kind, more, priority, model, trace, slot, steps, request, deadline in TO_ENGINE.iter_unpack(whole):
            if kind == Kind.CANCELLED:
                if call is not None:
                    yield Arrived(*call)
                    call = None
                yield Cancelled(request)
                continue
            self._rows.append((request, slot, steps))
            if more:
                continue
            name = self._models[model]
            if call is not None:
                yield Arrived(*call, more=call[0] == name)
            requests, slots, inputs = zip(*self._rows, strict=True)
            call = name, deadline, requests, slots, inputs, (), priority, trace
            self._rows.clear()
        if call is not None:
            yield Arrived(*call)


class EndedReader:
    """Turns the bytes from the engine into what has ended; keeps what is incomplete until the rest comes."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> Iterator[Ended | Stepped]:
        """Yield the requests and steps that `data` completes, a query behind its steps."""
        self._bytes, whole = _split(self._bytes + data, TO_DOOR.size)
        for outcome, stage, node, option, request, first, second in TO_DOOR.iter_unpack(whole):
            if node == NO_STEP:
                yield Ended(request, OUTCOMES[outcome], stage, first, second)
            else:
                yield Stepped(request, node, option, OUTCOMES[outcome], stage, first, second)


def _split(data: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the incomplete rest of `data` and all that is whole messages of `size` bytes."""
    whole = len(data) - len(data) % size
    return data[whole:], data[:whole]
