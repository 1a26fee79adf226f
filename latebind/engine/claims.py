"""The calls of an engine in the frontend: the slots that they claim, and their answers.

A call claims slots, fills them, sends them to the engine, and reads them once that has answered. The process behind it
is `client`'s.
"""

import asyncio
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from latebind.batching.requests import LAST
from latebind.domain.actions import Outcome
from latebind.domain.errors import (
    Expired,
    Failed,
    IllegalEvent,
    InvalidRequest,
    LatebindError,
    Loading,
    NotFound,
    Refused,
    StepFailed,
    TooLarge,
    Unavailable,
)
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.pieces import in_pieces
from latebind.engine.shared import NO_STEP, WROTE, Notice, NoticeReader, pack_arrived, pack_cancelled
from latebind.engine.slots import NO_EXTENTS, ModelSlots, Rows, Sizes, shapes_of
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.server.gateway import NO_DIMS, Answer, Shown, StepAnswer

LATEST_SECONDS = 0.05  # after a deadline in which the engine may report the outcome itself: it knows more
ANSWERED: Final = Outcome.ANSWERED  # looking the member up in its class takes ten times as long

StepRows = Mapping[tuple[str, str], tuple[ModelSpec, ModelSlots, int]]
"""By step of a query and model: the model, its slots, and its row that belongs to the query in slot 0."""


class Sized(NamedTuple):
    """What the engine needs to know of the rows of a call: the length of each, and `Arrived.sizes`."""

    lengths: tuple[int, ...]
    number: int


ALIKE: Final = Sized((), 0)  # for a model whose rows have one size
ALL_ALIKE: Final[Sizes] = ()


class Claim:
    """The slots of one call, from being claimed until they are released. Made by `Claims`.

    A slot is with the engine from `send` until the engine reports the end of its request. It is free again when it is
    not with the engine and the claim has been released. The tensors of its rows are `places` of the arrays in `arrays`;
    `sized` says how they differ from rows of other calls for the model.
    """

    def __init__(
        self,
        claims: "Claims",
        requests: tuple[int, ...],
        slots: tuple[int, ...],
        arrays: ModelSlots,
        places: tuple[int, ...],
        sized: Sized = ALIKE,
    ) -> None:
        self._claims = claims
        self._requests = requests
        self._slots = slots
        self._arrays = arrays
        self._places = places
        self._sized = sized
        self._sent = self._released = False
        self._ended: list[Notice | None] = [None] * len(requests)
        self._pending = len(requests)
        self._steps: dict[int, list[StepAnswer]] = {}  # of a query, by request
        self._answered: asyncio.Future[Answer] | None = None  # while `send` waits
        self.on_tokens: Callable[[], None] | None = None  # set by a call that streams
        self.tokens = 0  # of that call, as far as they are written

    @property
    def rows(self) -> Mapping[str, list[Rows]]:
        """The rows of the slots by input, each of its own shape; the call fills them before it sends them."""
        places, found = self._places, {}
        for tensor, array in zip(self._claims.spec.inputs, self._arrays.inputs, strict=True):
            found[tensor.name] = [array[place, ...] for place in places]
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
        """Send the filled rows and return their outputs, copied out of the slots (`gateway.Claim.send`).

        Raises `Expired` at the deadline, whatever the engine does; the slots stay the engine's until it reports the end
        of their requests.
        """
        claims = self._claims
        engine = claims.engine
        engine.require_engine()
        if self._sent or self._released:
            raise IllegalEvent(f"the slots of requests {self._requests} were sent or released before")
        self._sent = True
        for request in self._requests:
            engine.sent[request] = self
        answered: asyncio.Future[Answer] = engine.loop.create_future()
        self._answered = answered
        expiry = engine.loop.call_later(deadline + LATEST_SECONDS - time.monotonic(), self._expire)
        lengths, sizes = self._sized
        streams = self.on_tokens is not None
        engine.write(
            pack_arrived(
                claims.number, deadline, self._requests, self._slots, lengths, priority, trace, sizes, streams=streams
            )
        )
        try:
            return await answered
        except asyncio.CancelledError:
            left = [one for one, end in zip(self._requests, self._ended, strict=True) if end is None]
            engine.write(b"".join([pack_cancelled(request) for request in left]))
            raise
        finally:
            expiry.cancel()
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
                inputs, answers = slots.one(row)
                given = {tensor.name: [rows[0, ...]] for tensor, rows in zip(spec.inputs, inputs, strict=True)}
                outputs = {tensor.name: rows for tensor, rows in zip(spec.outputs, answers, strict=True)}
                caches = (int(slots.versions[row]),) if spec.lookups else ()
                promised = () if step.fidelity is None else (step.fidelity,)
                answered = Answer(outputs, (step.left_at,), spec=spec, caches=caches, promised=promised)
                yield Shown(spec, given, answered)

    def release(self) -> None:
        """Give up the slots, once. Those that the engine still uses become free when it reports their requests' end."""
        if self._released:
            raise IllegalEvent(f"the slots of requests {self._requests} were released before")
        self._released = True
        for slot, end in zip(self._slots, self._ended, strict=True):
            if end is not None or not self._sent:
                self._claims.free_slot(slot)

    def receive(self, notice: Notice) -> None:
        """Handle the end of one request, of one step of a query, or of one token; the last end answers the call."""
        if notice.node == NO_STEP:
            place = self._requests.index(notice.request)
            self._ended[place] = notice
            self._pending -= 1
            if self._released:
                self._claims.free_slot(self._slots[place])
            if not self._pending and self._answered is not None and not self._answered.done():
                self._answer(cast(list[Notice], self._ended))
        elif notice.node == WROTE:
            self.tokens = notice.option
            if self.on_tokens is not None:
                self.on_tokens()
        else:
            spec = self.spec.steps[notice.node]
            name, fidelity = spec.models[notice.option], None
            model, slots, first = self._claims.step_rows[spec.name, name]
            if model.lookups:
                row = first + self._slots[self._requests.index(notice.request)]
                fidelity = round(float(slots.promised[row]), FIDELITY_DIGITS)
            elif model.promised is not None:
                fidelity = model.promised.fidelity
            step = StepAnswer(spec.name, name, notice.stage, notice.first, notice.second, fidelity)
            self._steps.setdefault(notice.request, []).append(step)

    def fail(self, error: LatebindError) -> None:
        """Answer the call with an error, whatever happens to its requests."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def _expire(self) -> None:
        self.fail(_expired(self.spec.name))

    def _outputs(self) -> dict[str, Rows]:
        """Return the outputs of the slots, each `(N, *shape)`: a view if the slots are contiguous, else a copy."""
        first, last = self._places[0], self._places[-1]
        part = slice(first, last + 1) if last - first + 1 == len(self._places) else list(self._places)
        found = {}
        for tensor, rows in zip(self.spec.outputs, self._arrays.outputs, strict=True):
            found[tensor.name] = rows[part]
        return found

    def _answer(self, ends: Sequence[Notice]) -> None:
        """Answer the call, all of whose requests have ended."""
        spec, outputs = self.spec, self._outputs()
        for end in ends:
            if end.outcome != ANSWERED:
                self.fail(_error(spec, end, self._claims.engine.too_large.get(spec.name, "")))
                return
        for tensor in spec.outputs:
            rows = outputs[tensor.name]
            if tensor.padding is not None:  # a sequence: up to the longest row's last token, at least one
                rows = rows[:, : int((rows != tensor.padding).any(axis=0).nonzero()[0].max(initial=0)) + 1]
            outputs[tensor.name] = rows.copy()
        _, left_at, _, _, _, waited, ran = zip(*ends, strict=True)
        ran_steps = tuple([tuple(self._steps.get(one, ())) for one in self._requests]) if spec.steps else ()
        slots, caches, promised = self._claims.rows, tuple[int, ...](), tuple[float, ...]()
        if len(slots.versions):
            caches = tuple([int(slots.versions[slot]) for slot in self._slots])
            promised = tuple([round(float(slots.promised[slot]), FIDELITY_DIGITS) for slot in self._slots])
        elif spec.promised is not None:
            promised = (spec.promised.fidelity,) * len(self._slots)
        assert self._answered is not None, "the call is not waiting"
        self._answered.set_result(Answer(outputs, left_at, waited, ran, ran_steps, spec, True, caches, promised))


FIDELITY_DIGITS: Final = 6  # of promised ones, which slots have in float32


class WaitingClaim(NamedTuple):
    """A call that waits for `wanted` slots, for rows of these sizes."""

    rank: int
    wanted: int
    sizes: Sizes
    claimed: "asyncio.Future[Claim]"


class Claims:
    """The slots of one model or query, which messages name by its `number`, and the calls that wait for some.

    They are a ring, after Ebird's memory pool (section V, table I). An entry of table I corresponds to a slot: its
    serial number is the request, its input and output pointers are the number of the slot. Those of one engine share
    the iterator `numbers`, which numbers all its requests. A request of a query also owns the numbers that follow its
    own, one for each of the query's steps. `free` is the number of free slots.

    A call also needs room for its rows, and for those of its query's steps, if these differ in size. There is enough
    for the largest rows in all slots, but not always in one piece. `lacks_room` is true while the first call in line
    waits for that; of several such lines, the first is served first (`EngineCalls.grant_room`).
    """

    def __init__(
        self,
        engine: "EngineCalls",
        number: int,
        spec: ModelSpec,
        rows: ModelSlots,
        slots: int,
        numbers: Iterator[int],
        step_rows: StepRows | None = None,
    ) -> None:
        self.engine = engine
        self.number = number
        self.spec = spec
        self.rows = rows
        self.step_rows = step_rows or {}
        self.lacks_room = False
        self._sized_steps = [
            (slots.sized, row, sizes_of_step(spec, step, model))
            for (step, _), (model, slots, row) in self.step_rows.items()
            if slots.sized is not None
        ]
        # The extent that each slot has a part of.
        self._extents = [0] * slots if spec.dims or self._sized_steps else None
        self.free = slots
        self._taken = bytearray(slots)  # 1 where a slot is taken
        self._next = 0
        self._numbers = numbers
        self._stride = 1 + len(spec.steps)
        self._waiting: list[WaitingClaim] = []

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def busy(self) -> bool:
        """Whether any call holds slots or waits for some."""
        return self.free < len(self) or bool(self._waiting)

    async def claim(
        self, wanted: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Claim:
        """Return a claim on `wanted` slots, for rows with these `dims`, waiting in line if too few are free.

        The line is ordered by priority (1 first, 0 last), then by arrival, and holds at most as many calls as there are
        slots. Raises `Expired` at the `deadline` (`time.monotonic()` seconds), and `Refused` at once if the line is
        full, `TooLarge` if `wanted` exceeds the number of slots, and `InvalidRequest` for sizes that are not allowed.
        """
        sizes = ALL_ALIKE if self.rows.sized is None else self._checked(dims)
        if not self._waiting and (claim := self._try_claim(wanted, sizes)) is not None:
            return claim
        if wanted > len(self):
            raise TooLarge(
                f"{self.spec.name} has {len(self)} places: send at most that many rows in a call, not {wanted}"
            )
        if len(self._waiting) >= len(self):
            raise Refused(f"{self._no_room(wanted)}: try again later")
        waiting = WaitingClaim(priority or LAST, wanted, sizes, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiting, key=lambda one: one.rank)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await waiting.claimed
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.claimed.done() and not waiting.claimed.cancelled() and waiting.claimed.exception() is None:
                waiting.claimed.result().release()  # it got some in the meantime: they go to the next
            self._grant_waiting()
            if isinstance(error, asyncio.CancelledError):
                raise
            had = f"{self._no_room(wanted)}, and had none by the deadline: allow more time (`timeout`)"
            raise Expired(had) from None
        finally:
            del waiting  # its exception refers to this frame: the cycle would keep the slots mapped

    def free_slot(self, slot: int) -> None:
        """Make a slot free again; if calls wait, they are served."""
        self._taken[slot] = 0
        self.free += 1
        if self._extents is not None:
            self.engine.extents.free(self._extents[slot])
        if self._waiting or self._extents is not None:
            self._grant_waiting()

    def fail_waiting(self, error: LatebindError) -> None:
        """Fail all waiting calls with this error."""
        for waiting in self._waiting:
            if not waiting.claimed.done():
                waiting.claimed.set_exception(error)
        self._waiting.clear()

    def _checked(self, dims: Mapping[str, int]) -> Sizes:
        """Return the sizes in the order of the model's dimensions; raises `InvalidRequest`."""
        for dim in self.spec.dims:
            if dim.name not in dims or not dim.allows(dims[dim.name]):
                given = dims.get(dim.name, "no size")
                raise InvalidRequest(f"{self.spec.name} is given {given} for {dim.name}: it must be {dim.range()}")
        return tuple([dims[dim.name] for dim in self.spec.dims])

    def _try_claim(self, wanted: int, sizes: Sizes) -> Claim | None:
        """Claim slots that are contiguous, and follow those claimed before, if possible: a batch of them is a view.

        If the slot claimed last is free again, there is no batch to be contiguous with, and the search starts at slot
        0: the processor's caches still hold the rows used last.
        """
        if wanted > self.free:
            self.lacks_room = False
            return None
        if not self._taken[self._next - 1]:
            self._next = 0
        run = bytes(wanted)
        first = self._taken.find(run, self._next)
        if first < 0:
            first = self._taken.find(run)
        if first >= 0:
            slots = tuple(range(first, first + wanted))
        else:
            around = chain(range(self._next, len(self)), range(self._next))
            slots = tuple(islice((slot for slot in around if not self._taken[slot]), wanted))
        if self._extents is not None and not self._found_room(self._extents, slots, sizes):
            return None
        for slot in slots:
            self._taken[slot] = 1
        self.free -= wanted
        self._next = slots[-1] + 1
        requests = tuple(islice(self._numbers, wanted * self._stride))[:: self._stride]
        sized = self.rows.sized
        if sized is None:
            return Claim(self, requests, slots, self.rows, slots)
        arrays = ModelSlots(*sized.views(slots), self.rows.versions, self.rows.promised)
        row_sizes = Sized((sized.length(sizes),) * wanted, sized.number(sizes))
        return Claim(self, requests, slots, arrays, tuple(range(wanted)), row_sizes)

    def _found_room(self, extents: list[int], slots: Sequence[int], sizes: Sizes) -> bool:
        """Return whether there is room for rows of these sizes in these slots; if so, it is taken for them."""
        rows = [] if self.rows.sized is None else [(self.rows.sized, list(slots), sizes)]
        for sized, row, of_step in self._sized_steps:
            rows.append((sized, [row + slot for slot in slots], of_step(sizes)))
        lacking, begin = self.engine.lacking_room, None
        if not lacking or lacking[0] is self:
            size = sum([sized.bytes_of(len(some), each) for sized, some, each in rows])
            begin = self.engine.extents.take(size, shares=len(slots))
        self.lacks_room = begin is None
        if begin is None:
            if self not in lacking:
                lacking.append(self)
            return False
        for slot in slots:
            extents[slot] = begin
        for sized, some, each in rows:
            begin = sized.place(begin, some, each)
        return True

    def _grant_waiting(self) -> None:
        """Give slots to the calls that wait here, then room to those that wait elsewhere."""
        self.serve_line()
        if self._extents is not None:
            self.engine.grant_room()

    def serve_line(self) -> None:
        """Give slots to waiting calls in order, until there are too few, or too little room, for the first of them."""
        while self._waiting:
            waiting = self._waiting[0]
            if not waiting.claimed.done():
                claim = self._try_claim(waiting.wanted, waiting.sizes)
                if claim is None:
                    return
                waiting.claimed.set_result(claim)
            self._waiting.pop(0)
        self.lacks_room = False

    def _no_room(self, wanted: int) -> str:
        free = f"{self.free} of {len(self)} places are free"
        return f"{self.spec.name} has no room for {wanted} more rows ({free})"


def sizes_of_step(query: ModelSpec, step: str, model: ModelSpec) -> Callable[[Sizes], Sizes]:
    """Return a function from the sizes of a query's dimensions to those of the model's in one of its steps."""
    (of_step,) = [
        dict(takes.dims)
        for one in query.steps
        for name, takes in zip(one.models, one.inputs, strict=True)
        if (one.name, name) == (step, model.name)
    ]
    sizes = tuple([of_step.get(dim.name, dim.most) for dim in model.dims])
    shapes = shapes_of(query, [TensorSpec(step, "int32", (), sizes=sizes)])
    return lambda sizes: shapes(sizes)[0]


class EngineCalls(asyncio.Protocol):
    """The calls of one engine: gives slots to them, sends what they filled, and receives their ends.

    `models` are the models and queries that the engine serves. `too_large` says what models take that do not fit into
    memory as a whole. `preprocessors` are those of models with raw inputs, loaded by whoever starts the engine.
    `on_lost` is called if the engine ends without having been asked to.
    """

    def __init__(self) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.too_large: Mapping[str, str] = {}
        self.preprocessors: Mapping[str, Preprocessor] = {}
        self.on_lost: Callable[[], None] | None = None
        self.loop = asyncio.get_running_loop()
        self.lost_calls = Counter[str]()  # that were under way when the engine was lost, by model
        self.sent: dict[int, Claim] = {}  # claims of requests that the engine has not answered, by request
        self.extents = NO_EXTENTS  # for rows that differ in size
        self.lacking_room: deque[Claims] = deque()  # those with a call that waits for room in `extents`
        self._messages: asyncio.Transport | None = None
        self._reader = NoticeReader()
        self._unsent: list[bytes] = []  # messages of this turn of the event loop
        self._claims: dict[str, Claims] = {}
        self._alive = False

    def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Coroutine[Any, Any, Claim]:
        """Return `rows` slots to fill, waiting in line if too few are free.

        Raises `Refused`, `Expired`, `Unavailable`, `NotFound` or `InvalidRequest`.
        """
        self.require_engine()
        claims = self._claims.get(model)
        if claims is None:
            raise NotFound(f"there is no model {model!r:.140}")
        return claims.claim(rows, deadline=deadline, priority=priority, dims=dims)

    def preprocessor(self, model: str) -> Preprocessor | None:
        """Return what makes rows of a model's raw inputs, if it has any."""
        return self.preprocessors.get(model)

    def places(self, model: str) -> int:
        """Return the number of a model's slots."""
        return len(self._claims[model])

    async def infer(self, model: str, rows: Mapping[str, Rows], *, deadline: float) -> Answer:
        """Run rows `(N, *shape)` of every input as N requests due at `deadline` and return their outputs.

        Raises what `claim` and `Claim.send` raise. Cancelling this call cancels its requests.
        """
        spec = self.models[model]
        dims = spec.dims_of({name: some.shape[1:] for name, some in rows.items()}) if spec.dims else NO_DIMS
        with await self.claim(model, len(next(iter(rows.values()))), deadline=deadline, dims=dims) as claim:
            for tensor in spec.inputs:
                for place, row in zip(claim.rows[tensor.name], rows[tensor.name], strict=True):
                    place[...] = row
            return await claim.send(deadline=deadline)

    def grant_room(self) -> None:
        """Give room to calls that wait for it, in the order of their lines, until there is too little for the first."""
        while self.lacking_room:
            claims = self.lacking_room[0]
            claims.serve_line()
            if claims.lacks_room:
                return
            self.lacking_room.popleft()

    def require_engine(self) -> None:
        """Raise `Unavailable` if the engine has ended."""
        if not self._alive:
            raise Unavailable("the engine ended before this request could run: send it again")

    def write(self, messages: bytes) -> None:
        """Send messages of a claim, together with those of other calls that the event loop serves in the same turn.

        If the engine has ended, they are lost. Each write wakes the engine: one write for every call took a third of
        the frontend's time.
        """
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(messages)

    def _flush(self) -> None:
        assert self._messages is not None
        messages, self._unsent = b"".join(self._unsent), []
        if not self._messages.is_closing():  # uvloop raises if the other end has gone, even before it reports that
            self._messages.write(messages)

    def data_received(self, data: bytes) -> None:
        """Pass the requests, steps and tokens that have ended to their claims."""
        for notice in self._reader.feed(data):
            claim = self.sent.pop(notice.request) if notice.node == NO_STEP else self.sent[notice.request]
            claim.receive(notice)

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer everything in flight with `Unavailable`, because the engine has gone."""
        del exc
        served, self._alive = self._alive, False
        error = Unavailable("the engine ended while this request ran: send it again")
        lost = set(self.sent.values())
        self.lost_calls = Counter(claim.spec.name for claim in lost)
        for claim in lost:
            claim.fail(error)
        for claims in self._claims.values():
            claims.fail_waiting(error)
        self.sent.clear()
        if served and self.on_lost is not None:
            self.on_lost()


def _error(spec: ModelSpec, end: Notice, too_large: str) -> LatebindError:
    """Return the error of a request. `too_large` says what its model takes if that does not fit into memory."""
    subject = spec.name
    if spec.steps and end.stage >= 0:  # a query: the step that it had reached
        step = spec.steps[end.stage].name if end.stage < len(spec.steps) else "outputs"
        subject = f"step {step!r} of {spec.name}"
    match end.outcome:
        case Outcome.REFUSED_FULL:
            return Refused(f"the queue of {subject} is full: try again later")
        case Outcome.REFUSED_LATE:
            reason = "with the work ahead of it: allow more time (`timeout`, in microseconds) or try again later"
            if too_large:
                reason = (
                    f"because it is loaded piece by piece: {too_large}; allow more time (`timeout`, in microseconds), "
                    "or start the server with more --memory"
                )
            return Refused(f"{subject} cannot answer by the deadline, {reason}")
        case Outcome.REFUSED_LOADING:
            seconds = f"{max(end.first, 0.1):.1f} s"
            return Loading(
                f"{subject} is not in memory and is being loaded, for about {seconds}, which is longer than this "
                f"request may take: try again in {seconds}, or allow more time",
                end.first,
            )
        case Outcome.EXPIRED:
            return _expired(subject)
        case Outcome.NOT_LOADED:
            return Unavailable(
                f"{subject} could not be loaded into memory: try again later; the server's log says why, and "
                "`latebind models` whether its files are whole"
            )
        case _:
            failed = StepFailed if spec.steps else Failed
            return failed(f"{subject} raised while it ran this request: the server's log says why")


def _expired(subject: str) -> Expired:
    return Expired(f"{subject} could not answer by the deadline: allow more time (`timeout`)")
