"""The messages between frontend and engine, of fixed size. Tensors never cross here, and nothing is pickled."""

from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

from latebind.domain.actions import Outcome, Reply, StepEnded
from latebind.domain.events import Arrived, Cancelled

# kind, more follows, priority, streams, model, trace, slot, input length, request, deadline
TO_ENGINE = Struct("<BBB?HIIIQd")
TO_FRONTEND = Struct("<BxhhHQff")  # outcome, stage, node, option, request, two times in seconds
OUTCOMES = tuple(Outcome)  # indexed by value: calling the class takes five times as long
Numbers = tuple[int, ...]
Message = tuple[Any, ...]  # one message to the engine, unpacked by `TO_ENGINE`
NO_STEP = -1  # the node in a message about a whole request; its two times are then `waited` and `ran`
WROTE = -2  # the node in a message about tokens; its option is then their number
MOST_TOKENS = (1 << 16) - 1  # of which a message can tell; the end of the request tells of the others
ARRIVED, CANCELLED = 0, 1  # the kinds of message to the engine


class Ended(NamedTuple):
    """A request has ended. If the outcome is ANSWERED, its outputs are in its slot.

    `stage` is the stage at which it left, of a query the step that it had reached. `waited` and `ran` are the seconds
    that it spent in the queue and with a worker.
    """

    request: int
    outcome: Outcome
    stage: int
    waited: float
    ran: float


class Stepped(NamedTuple):
    """A step of a query has ended: step `node`, run by the model of index `option`, which it left at `stage`.

    `budget` and `spent` are the seconds that it was planned to take and that it took.
    """

    request: int
    node: int
    option: int
    outcome: Outcome
    stage: int
    budget: float
    spent: float


class Wrote(NamedTuple):
    """The first `tokens` tokens of the answer to a request are in its slot; the last one is reported by its end."""

    request: int
    tokens: int


def pack_arrived(
    model: int,
    deadline: float,
    requests: Sequence[int],
    slots: Sequence[int],
    inputs: Sequence[int] = (),
    priority: int = 0,
    trace: int = 0,
    *,
    streams: bool = False,
) -> bytes:
    """Pack one call: a message for each of its requests, all but the last marked "more follows".

    `inputs` are the input lengths of the requests, in steps; 1 each if left out.
    """
    last = len(requests) - 1
    if not last and not inputs:  # most calls
        return TO_ENGINE.pack(ARRIVED, False, priority, streams, model, trace, slots[0], 1, requests[0], deadline)
    return b"".join(
        TO_ENGINE.pack(ARRIVED, i < last, priority, streams, model, trace, slot, steps, request, deadline)
        for i, (request, slot, steps) in enumerate(zip(requests, slots, inputs or (1,) * (last + 1), strict=True))
    )


def pack_cancelled(request: int) -> bytes:
    """Pack a message that the client of `request` has gone."""
    return TO_ENGINE.pack(CANCELLED, False, 0, False, 0, 0, 0, 0, request, 0.0)


def pack_ended(ended: Reply | Ended) -> bytes:
    """Pack a message that a request has ended."""
    return TO_FRONTEND.pack(ended.outcome, ended.stage, NO_STEP, 0, ended.request, ended.waited, ended.ran)


def pack_stepped(step: StepEnded | Stepped) -> bytes:
    """Pack a message that a step of a query has ended."""
    return TO_FRONTEND.pack(step.outcome, step.stage, step.node, step.option, step.request, step.budget, step.spent)


def pack_wrote(request: int, tokens: int) -> bytes:
    """Pack a message that so many tokens of the answer to a request are written."""
    return TO_FRONTEND.pack(Outcome.ANSWERED, 0, WROTE, min(tokens, MOST_TOKENS), request, 0.0, 0.0)


class EventReader:
    """Unpacks bytes from the frontend into events; keeps an incomplete message or call until the rest arrives."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = models
        self._bytes = b""
        self._rows: list[Message] = []  # rows of a call whose last row has not arrived

    def feed(self, data: bytes) -> list[Arrived | Cancelled]:
        """Return the events that `data` completes.

        `Arrived.more` is set if the next event is a call of the same model.
        """
        self._bytes, whole = _split(self._bytes + data, TO_ENGINE.size)
        rows: list[Message] = [*self._rows, *TO_ENGINE.iter_unpack(whole)]
        end = len(rows)
        while end and rows[end - 1][1]:
            end -= 1
        self._rows = rows[end:]
        found: list[Arrived | Cancelled] = []
        first = 0
        for last in range(end):
            kind, more, priority, streams, model, trace, slot, steps, request, deadline = rows[last]
            if more:
                continue
            if kind == CANCELLED:
                found.append(Cancelled(request))
                first = last + 1
                continue
            slots: Numbers = (slot,)
            inputs: Numbers = (steps,)
            requests: Numbers = (request,)
            if first < last:  # most calls have one row
                _, _, _, _, _, _, slots, inputs, requests, _ = zip(*rows[first : last + 1], strict=True)
            first = last + 1
            follows = first < end and rows[first][0] == ARRIVED and rows[first][4] == model
            name = self._models[model]
            found.append(Arrived(name, deadline, requests, slots, inputs, priority, trace, follows, streams))
        return found


class EndedReader:
    """Unpacks bytes from the engine into what has ended; keeps an incomplete message until the rest arrives."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, data: bytes) -> list[Ended | Stepped | Wrote]:
        """Return the requests, steps and tokens that `data` completes; a request comes after its steps and tokens."""
        self._bytes, whole = _split(self._bytes + data, TO_FRONTEND.size)
        return [
            Ended(request, OUTCOMES[outcome], stage, first, second)
            if node == NO_STEP
            else Wrote(request, option)
            if node == WROTE
            else Stepped(request, node, option, OUTCOMES[outcome], stage, first, second)
            for outcome, stage, node, option, request, first, second in TO_FRONTEND.iter_unpack(whole)
        ]


def _split(data: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the incomplete rest of `data`, and its whole messages of `size` bytes."""
    whole = len(data) - len(data) % size
    return data[whole:], data[:whole]
