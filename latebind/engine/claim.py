"""One call's slots at the door: the call fills them, sends them to the engine, and reads them once it has answered."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from types import TracebackType
from typing import Final, Protocol, Self, cast

import msgspec

from latebind.domain.actions import Outcome
from latebind.domain.errors import Expired, Failed, LatebindError, Loading, Refused, StepFailed, Unavailable
from latebind.domain.model import ModelSpec
from latebind.engine.lane import Lane
from latebind.engine.messages import Ended, Stepped, pack_arrived, pack_cancelled
from latebind.engine.pieces import in_pieces
from latebind.engine.slots import Move, Rows
from latebind.sequence.padding import steps, trimmed
from latebind.server.gateway import Answer, Shown, StepAnswer

ANSWERED: Final = Outcome.ANSWERED
Then = Callable[[Answer | Exception], None]


class Engine(Protocol):
    """What a claim needs of the engine client.

    `sent` holds the claim of each request that has not been answered, `too_large` what models take that memory does not
    hold as a whole.
    """

    sent: dict[int, "Claim"]
    too_large: Mapping[str, str]

    def require_engine(self) -> None:
        """Raise `Unavailable` if the engine has ended."""
        ...

    def write(self, messages: bytes) -> None:
        """Send packed messages to the engine."""
        ...

    def watch(self, deadline: float) -> None:
        """See to it that a claim is told at its deadline, if it has no answer by then."""
        ...


class Claim:
    """The slots of one call, from being claimed until they are released. Made by an `EngineClient`."""

    __slots__ = (
        "_client",
        "_deadline",
        "_ended",
        "_lane",
        "_pending",
        "_requests",
        "_slots",
        "_steps",
        "_then",
        "on_tokens",
        "tokens",
    )

    def __init__(self, client: Engine, lane: Lane, requests: tuple[int, ...], slots: tuple[int, ...]) -> None:
        self._client = client
        self._lane = lane
        self._requests = requests
        self._slots = slots
        self._ended: list[Ended | None] = [None] * len(requests)
        self._pending = len(requests)
        self._steps: dict[int, list[StepAnswer]] | None = None
        if lane.is_query:
            self._steps = {request: [] for request in requests}
        self._then: Then | None = None
        self._deadline = 0.0
        self.on_tokens: Callable[[], None] | None = None  # of a call that streams
        self.tokens = 0

    @property
    def rows(self) -> Mapping[str, list[Rows]]:
        """The rows of the slots by input; the owner fills them before it sends them."""
        return self._lane.inputs(self._slots)

    @property
    def raw(self) -> Mapping[str, Sequence[memoryview]]:
        """The same rows as bytes."""
        return self._lane.raw(self._slots)

    @property
    def spec(self) -> ModelSpec:
        """The model whose slots these are."""
        return self._lane.spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def dispatch(self, then: Then, *, deadline: float, priority: int = 0, trace: int = 0) -> None:
        """Send the filled rows to the engine, to be run by `deadline`, and call `then` with the answer or error.

        At the deadline that is `Expired`, whatever the engine does; the slots stay the engine's until it reports the
        end of their requests. The arrays of an answer are the slots themselves: read them before `release`. Among
        requests that wait for their model to be loaded, `priority` 1 goes first and 0 last. If `trace` is not 0, the
        engine reports the rows' traces under this number (`EngineClient.traces`). Raises `Unavailable`.
        """
        lane, client = self._lane, self._client
        client.require_engine()
        for request, slot in zip(self._requests, self._slots, strict=True):
            lane.move(slot, request, Move.SEND)
            client.sent[request] = self
        self._then, self._deadline = then, deadline
        client.watch(deadline)
        lengths = steps(lane.spec, self.rows) if lane.reads_sequences else ()
        streams = self.on_tokens is not None
        client.write(
            pack_arrived(lane.number, deadline, self._requests, self._slots, lengths, priority, trace, streams=streams)
        )

    def cancel(self) -> None:
        """Call nobody back, and cancel those requests that have not ended."""
        self._then = None
        left = [request for request, end in zip(self._requests, self._ended, strict=True) if end is None]
        self._client.write(b"".join([pack_cancelled(request) for request in left]))

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        """Dispatch the rows and return their outputs, copied out of the slots.

        Raises `Refused`, `Expired`, `Failed` or `Unavailable`. Cancelling this call cancels its requests.
        """
        ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.dispatch(partial(_end, ended), deadline=deadline, priority=priority, trace=trace)
        try:
            return await ended
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            del ended  # its exception refers to this frame: the cycle would keep the engine's memory mapped

    def stream(self, *, deadline: float, priority: int = 0, trace: int = 0) -> AsyncGenerator[Answer]:
        """Dispatch the only row, and yield its tokens in pieces as they are written (`engine.pieces`)."""
        return in_pieces(self, self.send(deadline=deadline, priority=priority, trace=trace))

    def shown(self, answer: Answer) -> Iterator[Shown]:
        """Yield the steps that a query ran, row by row, as calls of their models; yields nothing for a model."""
        if self._lane.steps is not None:
            for slot, steps in zip(self._slots, answer.steps, strict=True):
                yield from self._lane.steps.shown(slot, steps)

    def release(self) -> None:
        """Give up the slots. Those that the engine still uses become free when it reports the end of their requests."""
        for request, slot in zip(self._requests, self._slots, strict=True):
            self._lane.move(slot, request, Move.RELEASE)

    def step(self, stepped: Stepped) -> None:
        """Handle the end of one step of a query."""
        spec = self._lane.spec.steps[stepped.node]
        model = spec.models[stepped.option]
        assert self._steps is not None, "a model has no steps"
        self._steps[stepped.request].append(StepAnswer(spec.name, model, stepped.stage, stepped.budget, stepped.spent))

    def wrote(self, tokens: int) -> None:
        """Handle that so many tokens are written."""
        self.tokens = tokens
        if self.on_tokens is not None:
            self.on_tokens()

    def written(self, begin: int, end: int) -> Answer:
        """Return a copy of these tokens of the only row."""
        answers = self._lane.answers(self._slots)
        rows = {spec.name: answers[spec.name][:, begin:end].copy() for spec, _ in self._lane.outputs}
        return Answer(rows, (), spec=self._lane.spec, complete=False)

    def end(self, ended: Ended) -> None:
        """Handle the end of one request; the last one answers the call."""
        place = self._requests.index(ended.request)
        self._lane.move(self._slots[place], ended.request, Move.END)
        self._ended[place] = ended
        self._pending -= 1
        if not self._pending and self._then is not None:
            self._call_back(self._outcome(cast(list[Ended], self._ended)))

    def expire(self, now: float) -> float:
        """Answer the call if its deadline has passed; return when that will be, infinity if it has its answer."""
        if self._then is not None and self._deadline <= now:
            self._call_back(_expired(_who(self._lane.spec, -1)))
        return inf if self._then is None else self._deadline

    def fail(self, error: LatebindError) -> None:
        """Answer the call with an error, whatever becomes of its requests."""
        self._call_back(error)

    def _call_back(self, what: Answer | LatebindError) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(what)

    def _outcome(self, ends: Sequence[Ended]) -> Answer | LatebindError:
        for end in ends:
            if end.outcome is not ANSWERED:
                return _error(self._lane.spec, end, self._client.too_large.get(self._lane.spec.name, ""))
        return self._answer(ends)

    def _answer(self, ends: Sequence[Ended]) -> Answer:
        """Return the outputs as views of the slots."""
        lane = self._lane
        outputs = lane.answers(self._slots)
        if lane.writes_sequences:
            outputs = {spec.name: trimmed(outputs[spec.name], spec) for spec, _ in lane.outputs}
        if len(ends) == 1 and self._steps is None:  # most calls
            end = ends[0]
            return Answer(
                outputs, (end.stage,), (end.waited,), (end.ran,), (), lane.spec, True, lane.caches(self._slots)
            )
        return Answer(
            outputs,
            tuple([end.stage for end in ends]),
            tuple([end.waited for end in ends]),
            tuple([end.ran for end in ends]),
            () if self._steps is None else tuple([tuple(self._steps[request]) for request in self._requests]),
            lane.spec,
            True,
            lane.caches(self._slots),
        )


def _end(ended: "asyncio.Future[Answer]", what: Answer | LatebindError) -> None:
    """Resolve `ended` with the error, or with a copy of the answer that stays valid after the slots are released."""
    if ended.done():
        return
    if isinstance(what, Answer):
        outputs = {name: rows.copy() for name, rows in what.outputs.items()}
        ended.set_result(msgspec.structs.replace(what, outputs=outputs))
    else:
        ended.set_exception(what)


def _error(spec: ModelSpec, end: Ended, too_large: str) -> LatebindError:
    """Return the error of a request. `too_large` says what its model takes where memory does not hold all of it."""
    who = _who(spec, end.stage)
    match end.outcome:
        case Outcome.REFUSED_FULL:
            return Refused(f"the queue of {who} is full: try again later")
        case Outcome.REFUSED_LATE:
            why = "with what there is to do first: allow more time (`timeout`, in microseconds) or try again later"
            if too_large:
                why = (
                    f"for it is loaded piece by piece: {too_large}; allow more time (`timeout`, in microseconds), or "
                    "start the server with more --memory"
                )
            return Refused(f"{who} cannot answer by the deadline, {why}")
        case Outcome.REFUSED_LOADING:
            seconds = f"{max(end.waited, 0.1):.1f} s"
            return Loading(
                f"{who} is not in memory and is being loaded, for about {seconds}, which is longer than this request "
                f"may take: try again in {seconds}, or allow more time",
                end.waited,
            )
        case Outcome.EXPIRED:
            return _expired(who)
        case Outcome.NOT_LOADED:
            return Unavailable(
                f"{who} could not be brought into memory: try again later; the server's log says why, and `latebind "
                "models` whether its files are whole"
            )
        case _:
            failed = StepFailed if spec.steps else Failed
            return failed(f"{who} raised while it ran this request: the server's log says why")


def _expired(who: str) -> Expired:
    return Expired(f"{who} could not answer by the deadline: allow more time (`timeout`)")


def _who(spec: ModelSpec, stage: int) -> str:
    """Name what failed: a model, or the step that a query had reached."""
    if not spec.steps or stage < 0:
        return spec.name
    step = spec.steps[stage].name if stage < len(spec.steps) else "outputs"
    return f"step {step!r} of {spec.name}"
