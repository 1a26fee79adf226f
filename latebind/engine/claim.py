"""Slots at the frontend: the owner of each slot of a model, the calls that wait for slots, and the claim of one call.

A call fills its slots, sends them to the engine, and reads them once that has answered.
"""

import asyncio
import time
from bisect import insort
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from enum import IntEnum, auto
from itertools import chain, islice
from math import inf
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, cast

from latebind.batching.requests import LAST
from latebind.domain.actions import Outcome
from latebind.domain.errors import (
    Expired,
    Failed,
    IllegalEvent,
    LatebindError,
    Loading,
    Refused,
    StepFailed,
    Unavailable,
)
from latebind.domain.model import ModelSpec
from latebind.engine.messages import Ended, Stepped, pack_arrived, pack_cancelled
from latebind.engine.pieces import in_pieces
from latebind.engine.slots import ModelSlots, Rows
from latebind.sequence.padding import steps, trimmed
from latebind.server.gateway import Answer, Shown, StepAnswer

ANSWERED: Final = Outcome.ANSWERED
Then = Callable[[Answer | Exception], None]

StepRows = Mapping[tuple[str, str], tuple[ModelSpec, ModelSlots, int]]
"""By step of a query and model: the model, its slots, and its row that belongs to the query in slot 0."""


class Phase(IntEnum):
    """How far the request in a slot has come."""

    FREE = 0
    FILLING = 1  # the call that claimed it writes the input
    READY = 2  # the input is complete and has been sent to the engine
    ANSWERED = 3  # the engine has ended the request; the call may still read the outputs
    ABANDONED = 4  # the call has released it, but the engine may use it until it reports the request's end


class Move(IntEnum):
    """What may happen to a slot that is not free."""

    SEND = auto()  # the call sends the request to the engine
    END = auto()  # the engine reports the end of the request
    RELEASE = auto()  # the call needs the slot no longer


TRANSITIONS: Final[dict[tuple[int, Move], Phase]] = {
    (Phase.FILLING, Move.SEND): Phase.READY,
    (Phase.FILLING, Move.RELEASE): Phase.FREE,
    (Phase.READY, Move.END): Phase.ANSWERED,
    (Phase.READY, Move.RELEASE): Phase.ABANDONED,
    (Phase.ANSWERED, Move.RELEASE): Phase.FREE,
    (Phase.ABANDONED, Move.END): Phase.FREE,
}
FREE: Final = Phase.FREE  # looking the member up in its class takes ten times as long
FILLING: Final = Phase.FILLING
NO_REQUEST: Final = 0


class Pool:
    """The slots of one model at the frontend: a ring, after Ebird's memory pool (section V, table I).

    An entry of table I corresponds to a slot: its serial number is the request, its input and output pointers are the
    number of the slot, and its two events are the phases READY and ANSWERED. Requests are numbers above 0, each used
    once; a slot holds one request or none. `free` is the number of free slots.
    """

    def __init__(self, slots: int) -> None:
        self._phases = bytearray(slots)
        self._requests = [NO_REQUEST] * slots
        self._next = 0
        self.free = slots

    def __len__(self) -> int:
        return len(self._phases)

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
        if wanted > self.free:
            return None
        if self._phases[self._next - 1] == FREE:
            self._next = 0
        run = bytes(wanted)  # this many phases that are FREE
        first = self._phases.find(run, self._next)
        if first < 0:
            first = self._phases.find(run)
        if first >= 0:
            slots = tuple(range(first, first + wanted))
        else:
            around = chain(range(self._next, len(self)), range(self._next))
            slots = tuple(islice((slot for slot in around if self._phases[slot] == FREE), wanted))
        for slot, request in zip(slots, requests, strict=True):
            self._phases[slot] = FILLING
            self._requests[slot] = request
        self.free -= wanted
        self._next = slots[-1] + 1
        return slots

    def move(self, slot: int, request: int, move: Move) -> Phase:
        """Apply a move of the request that owns the slot and return the new phase.

        Raises `IllegalEvent`, changing nothing, if another request owns the slot or the move is illegal in its phase.
        """
        after = TRANSITIONS.get((self._phases[slot], move))
        if after is None or self._requests[slot] != request:
            has = f"{self._requests[slot]} has it, {self.phase(slot).name}"
            raise IllegalEvent(f"request {request} cannot {move.name} slot {slot}: {has}")
        self._phases[slot] = after
        if after is FREE:
            self._requests[slot] = NO_REQUEST
            self.free += 1
        return after

    def check(self) -> None:
        """Raise `AssertionError` unless used slots have distinct owners, free ones none, and the count is right."""
        owners = [request for request in self._requests if request != NO_REQUEST]
        assert len(set(owners)) == len(owners), "a request has two slots"
        assert self.free == len(self) - len(owners), "the count of free slots is wrong"
        for phase, request in zip(self._phases, self._requests, strict=True):
            assert (phase == FREE) == (request == NO_REQUEST), "a slot is taken by nobody or free with an owner"


class Engine(Protocol):
    """What claims need of the engine client.

    `sent` holds the claim of each request that has not been answered, `too_large` what models take that memory does not
    hold as a whole.
    """

    sent: dict[int, "Claim"]
    too_large: Mapping[str, str]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it belongs to."""
        ...

    def require_engine(self) -> None:
        """Raise `Unavailable` if the engine has ended."""
        ...

    def write(self, messages: bytes) -> None:
        """Send packed messages to the engine."""
        ...

    def watch(self, deadline: float) -> None:
        """See to it that a claim is told at its deadline, if it has no answer by then."""
        ...


class WaitingClaim(NamedTuple):
    """A call that waits for so many slots."""

    rank: int
    wanted: int
    claimed: "asyncio.Future[Claim]"


class Claims:
    """The slots of one model or query, whose `number` stands in messages, and the calls that wait for some.

    Those of one engine share the iterator `numbers`, which numbers all its requests. A request of a query also owns the
    numbers that follow its own, one for each of the query's steps.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        spec: ModelSpec,
        rows: ModelSlots,
        numbers: Iterator[int],
        step_rows: StepRows | None = None,
    ) -> None:
        self.engine = engine
        self.number = number
        self.spec = spec
        self.rows = rows
        self.step_rows = step_rows or {}
        self.reads_sequences = any(tensor.padding is not None for tensor in spec.inputs)
        self.pool = Pool(len(rows.inputs[0]))
        self._numbers = numbers
        self._stride = 1 + len(spec.steps)
        self._waiting: list[WaitingClaim] = []

    @property
    def busy(self) -> bool:
        """Whether any call holds slots or waits for some."""
        return self.pool.free < len(self.pool) or bool(self._waiting)

    async def claim(self, wanted: int, *, deadline: float, priority: int = 0) -> "Claim":
        """Return a claim on `wanted` slots, waiting in line if too few are free.

        The line is ordered by priority (1 first, 0 last), then by arrival, and holds at most as many calls as there are
        slots. Raises `Expired` at the `deadline` (`time.monotonic()` seconds), and `Refused` at once if the line is
        full or `wanted` exceeds the number of slots.
        """
        if not self._waiting and (claim := self._try_claim(wanted)) is not None:
            return claim
        if wanted > len(self.pool) or len(self._waiting) >= len(self.pool):
            raise Refused(f"{self._no_room(wanted)}: try again later")
        waiting = WaitingClaim(priority or LAST, wanted, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiting, key=lambda one: one.rank)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waiting.claimed
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.claimed.done() and not waiting.claimed.cancelled() and waiting.claimed.exception() is None:
                waiting.claimed.result().release()  # it was given some in the meantime: they go to the next
            self._grant_waiting()
            if isinstance(error, asyncio.CancelledError):
                raise
            had = f"{self._no_room(wanted)}, and had none by the deadline: allow more time (`timeout`)"
            raise Expired(had) from None
        finally:
            del waiting  # its exception refers to this frame: the cycle would keep the slots mapped

    def move(self, slot: int, request: int, move: Move) -> None:
        """Record a move of a request; if that frees its slot, waiting calls are served."""
        if self.pool.move(slot, request, move) is FREE and self._waiting:
            self._grant_waiting()

    def fail_waiting(self, error: LatebindError) -> None:
        """Fail all waiting calls with this error."""
        for waiting in self._waiting:
            if not waiting.claimed.done():
                waiting.claimed.set_exception(error)
        self._waiting.clear()

    def _try_claim(self, wanted: int) -> "Claim | None":
        if wanted > self.pool.free:
            return None
        requests = tuple(islice(self._numbers, wanted * self._stride))[:: self._stride]
        slots = self.pool.claim(requests)
        assert slots is not None
        return Claim(self, requests, slots)

    def _grant_waiting(self) -> None:
        """Give slots to waiting calls in order, until there are too few for the first of them."""
        while self._waiting:
            waiting = self._waiting[0]
            if not waiting.claimed.done():
                claim = self._try_claim(waiting.wanted)
                if claim is None:
                    return
                waiting.claimed.set_result(claim)
            self._waiting.pop(0)

    def _no_room(self, wanted: int) -> str:
        free = f"{self.pool.free} of {len(self.pool)} places are free"
        return f"{self.spec.name} has no room for {wanted} more rows ({free})"


class Claim:
    """The slots of one call, from being claimed until they are released. Made by `Claims`."""

    __slots__ = (
        "_answered",
        "_claims",
        "_deadline",
        "_ended",
        "_pending",
        "_requests",
        "_slots",
        "_steps",
        "on_tokens",
        "tokens",
    )

    def __init__(self, claims: Claims, requests: tuple[int, ...], slots: tuple[int, ...]) -> None:
        self._claims = claims
        self._requests = requests
        self._slots = slots
        self._ended: list[Ended | None] = [None] * len(requests)
        self._pending = len(requests)
        self._steps: dict[int, list[StepAnswer]] = {}  # of a query, by request
        self._answered: asyncio.Future[Answer] | None = None  # while `send` waits
        self._deadline = 0.0
        self.on_tokens: Callable[[], None] | None = None  # of a call that streams, which has so many `tokens`
        self.tokens = 0

    @property
    def rows(self) -> Mapping[str, list[Rows]]:
        """The rows of the slots by input, each of the tensor's shape; the call fills them before it sends them."""
        claims, slots = self._claims, self._slots
        found = {}
        for tensor, array in zip(claims.spec.inputs, claims.rows.inputs, strict=True):
            found[tensor.name] = [array[slot, ...] for slot in slots]
        return found

    @property
    def spec(self) -> ModelSpec:
        """The model whose slots these are."""
        return self._claims.spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        """Send the filled rows, to be run by `deadline`, and return their outputs, copied out of the slots.

        At the deadline that is `Expired`, whatever the engine does; the slots stay the engine's until it reports the
        end of their requests. Among requests that wait for their model to be loaded, `priority` 1 goes first and 0
        last. If `trace` is not 0, the engine reports the rows' traces under this number (`EngineClient.traces`). Raises
        `Refused`, `Expired`, `Failed` or `Unavailable`. Cancelling this call cancels its requests.
        """
        claims = self._claims
        engine = claims.engine
        engine.require_engine()
        for request, slot in zip(self._requests, self._slots, strict=True):
            claims.move(slot, request, Move.SEND)
            engine.sent[request] = self
        answered: asyncio.Future[Answer] = engine.loop.create_future()
        self._answered = answered
        self._deadline = deadline
        engine.watch(deadline)
        lengths = steps(claims.spec, self.rows) if claims.reads_sequences else ()
        streams = self.on_tokens is not None
        engine.write(
            pack_arrived(
                claims.number, deadline, self._requests, self._slots, lengths, priority, trace, streams=streams
            )
        )
        try:
            return await answered
        except asyncio.CancelledError:
            left = [one for one, end in zip(self._requests, self._ended, strict=True) if end is None]
            engine.write(b"".join([pack_cancelled(request) for request in left]))
            raise
        finally:
            self._answered = None
            del answered  # its exception refers to this frame: the cycle would keep the engine's memory mapped

    def stream(self, *, deadline: float, priority: int = 0, trace: int = 0) -> AsyncGenerator[Answer]:
        """Send the only row, and yield its tokens in pieces as they are written (`engine.pieces`)."""
        return in_pieces(self, self.send(deadline=deadline, priority=priority, trace=trace))

    def written(self, begin: int, end: int) -> Answer:
        """Return a copy of these tokens of the only row."""
        outputs = {name: rows[:, begin:end].copy() for name, rows in self._outputs().items()}
        return Answer(outputs, (), spec=self.spec, complete=False)

    def shown(self, answer: Answer) -> Iterator[Shown]:
        """Yield the steps that a query ran, row by row, as calls of their models; yields nothing for a model."""
        for slot, ran in zip(self._slots, answer.steps, strict=bool(answer.steps)):
            for step in ran:
                spec, slots, first = self._claims.step_rows[step.step, step.model]
                row = first + slot
                given = {tensor.name: [rows[row, ...]] for tensor, rows in zip(spec.inputs, slots.inputs, strict=True)}
                outputs = {
                    tensor.name: trimmed(rows[row : row + 1], tensor)
                    for tensor, rows in zip(spec.outputs, slots.outputs, strict=True)
                }
                caches = (int(slots.versions[row]),) if spec.lookups else ()
                yield Shown(spec, given, Answer(outputs, (step.left_at,), spec=spec, caches=caches))

    def release(self) -> None:
        """Give up the slots. Those that the engine still uses become free when it reports the end of their requests."""
        for request, slot in zip(self._requests, self._slots, strict=True):
            self._claims.move(slot, request, Move.RELEASE)

    def step(self, stepped: Stepped) -> None:
        """Handle the end of one step of a query."""
        spec = self.spec.steps[stepped.node]
        model = spec.models[stepped.option]
        found = self._steps.setdefault(stepped.request, [])
        found.append(StepAnswer(spec.name, model, stepped.stage, stepped.budget, stepped.spent))

    def wrote(self, tokens: int) -> None:
        """Handle that so many tokens are written."""
        self.tokens = tokens
        if self.on_tokens is not None:
            self.on_tokens()

    def end(self, ended: Ended) -> None:
        """Handle the end of one request; the last one answers the call."""
        place = self._requests.index(ended.request)
        self._claims.move(self._slots[place], ended.request, Move.END)
        self._ended[place] = ended
        self._pending -= 1
        if self._pending or self._answered is None or self._answered.done():
            return
        ends = cast(list[Ended], self._ended)
        for end in ends:
            if end.outcome is not ANSWERED:
                self.fail(_error(self.spec, end, self._claims.engine.too_large.get(self.spec.name, "")))
                return
        self._answered.set_result(self._answer(ends))

    def expire(self, now: float) -> float:
        """Answer the call if its deadline has passed; return when that will be, infinity if it has its answer."""
        if self._deadline <= now:
            self.fail(_expired(_subject(self.spec, -1)))
        return inf if self._answered is None or self._answered.done() else self._deadline

    def fail(self, error: LatebindError) -> None:
        """Answer the call with an error, whatever becomes of its requests."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def _outputs(self) -> dict[str, Rows]:
        """Return the outputs of the slots, each `(N, *shape)`: a view if the slots are contiguous, else a copy."""
        first, last = self._slots[0], self._slots[-1]
        part = slice(first, last + 1) if last - first + 1 == len(self._slots) else list(self._slots)
        found = {}
        for tensor, rows in zip(self.spec.outputs, self._claims.rows.outputs, strict=True):
            found[tensor.name] = rows[part]
        return found

    def _answer(self, ends: Sequence[Ended]) -> Answer:
        spec, outputs = self.spec, self._outputs()
        for tensor in spec.outputs:
            rows = outputs[tensor.name]
            outputs[tensor.name] = (rows if tensor.padding is None else trimmed(rows, tensor)).copy()
        _, _, left_at, waited, ran = zip(*ends, strict=True)
        ran_steps = tuple([tuple(self._steps.get(one, ())) for one in self._requests]) if spec.steps else ()
        versions = self._claims.rows.versions
        caches = tuple([int(versions[slot]) for slot in self._slots]) if len(versions) else ()
        return Answer(outputs, left_at, waited, ran, ran_steps, spec, True, caches)


def _error(spec: ModelSpec, end: Ended, too_large: str) -> LatebindError:
    """Return the error of a request. `too_large` says what its model takes where memory does not hold all of it."""
    subject = _subject(spec, end.stage)
    match end.outcome:
        case Outcome.REFUSED_FULL:
            return Refused(f"the queue of {subject} is full: try again later")
        case Outcome.REFUSED_LATE:
            why = "with what there is to do first: allow more time (`timeout`, in microseconds) or try again later"
            if too_large:
                why = (
                    f"for it is loaded piece by piece: {too_large}; allow more time (`timeout`, in microseconds), or "
                    "start the server with more --memory"
                )
            return Refused(f"{subject} cannot answer by the deadline, {why}")
        case Outcome.REFUSED_LOADING:
            seconds = f"{max(end.waited, 0.1):.1f} s"
            return Loading(
                f"{subject} is not in memory and is being loaded, for about {seconds}, which is longer than this "
                f"request may take: try again in {seconds}, or allow more time",
                end.waited,
            )
        case Outcome.EXPIRED:
            return _expired(subject)
        case Outcome.NOT_LOADED:
            return Unavailable(
                f"{subject} could not be brought into memory: try again later; the server's log says why, and "
                "`latebind models` whether its files are whole"
            )
        case _:
            failed = StepFailed if spec.steps else Failed
            return failed(f"{subject} raised while it ran this request: the server's log says why")


def _expired(subject: str) -> Expired:
    return Expired(f"{subject} could not answer by the deadline: allow more time (`timeout`)")


def _subject(spec: ModelSpec, stage: int) -> str:
    """Name what failed: a model, or the step that a query had reached."""
    if not spec.steps or stage < 0:
        return spec.name
    step = spec.steps[stage].name if stage < len(spec.steps) else "outputs"
    return f"step {step!r} of {spec.name}"
