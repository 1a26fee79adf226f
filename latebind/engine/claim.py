"""A call's slots at the door: filled by their owner, sent to the engine, read when all its requests have ended."""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self

from latebind.domain.actions import Outcome
from latebind.domain.errors import Expired, Failed, LatebindError, Refused, StepFailed, Unavailable
from latebind.domain.model import ModelSpec
from latebind.engine.lane import Lane
from latebind.engine.messages import Ended, Stepped, pack_arrived, pack_cancelled
from latebind.engine.pool import Step
from latebind.engine.slots import Rows
from latebind.sequence.padding import steps, trimmed
from latebind.server.gateway import Answer, StepAnswer


class Engine(Protocol):
    """What a claim needs of the engine's end at the door. `sent` is what the engine has, by request."""

    sent: dict[int, "Claim"]

    def require_engine(self) -> None:
        """Raise `Unavailable` where the engine has ended."""
        ...

    def write(self, messages: bytes) -> None:
        """Send messages to it."""
        ...


class Claim:
    """The slots of one call, from the moment they are its own until it lets go of them. `EngineClient.claim` makes one.

    `rows` are, by input, the rows of the slots, for the owner to fill before it sends them.
    """

    __slots__ = ("_client", "_ended", "_lane", "_requests", "_slots", "_steps", "answer", "rows")

    def __init__(self, client: Engine, lane: Lane, requests: tuple[int, ...], slots: tuple[int, ...]) -> None:
        self.rows: Mapping[str, list[Rows]] = lane.inputs(slots)
        self._client = client
        self._lane = lane
        self._requests = requests
        self._slots = slots
        self._ended: dict[int, Ended] = {}
        self._steps: dict[int, list[StepAnswer]] = {request: [] for request in requests} if lane.spec.steps else {}
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

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

    async def send(self, *, deadline: float, priority: int = 0, trace: int = 0) -> Answer:
        """Have the engine run the rows, which are filled, by `deadline` and return their outputs.

        Of those that wait for the model, `priority` 1 goes first and 0 last. Under the number `trace`, if it is not 0,
        the engine tells what became of them (`EngineClient.traces`).
        Raises `Refused`, `Expired`, `Failed` or `Unavailable`; cancelling this call cancels its requests.
        """
        lane, client = self._lane, self._client
        client.require_engine()
        for request, slot in zip(self._requests, self._slots, strict=True):
            lane.move(slot, request, Step.SEND)
            client.sent[request] = self
        lengths = steps(lane.spec, self.rows)
        client.write(pack_arrived(lane.number, deadline, self._requests, self._slots, lengths, priority, trace))
        try:
            return await self.answer
        except asyncio.CancelledError:
            left = [request for request in self._requests if request not in self._ended]
            client.write(b"".join([pack_cancelled(request) for request in left]))
            raise

    def release(self) -> None:
        """Let go of the slots; the engine may still have some until it says that their requests ended."""
        for request, slot in zip(self._requests, self._slots, strict=True):
            self._lane.move(slot, request, Step.LEAVE)

    def step(self, stepped: Stepped) -> None:
        """Take in the end of one step of a query."""
        spec = self._lane.spec.steps[stepped.node]
        model = spec.models[stepped.option]
        self._steps[stepped.request].append(StepAnswer(spec.name, model, stepped.stage, stepped.budget, stepped.spent))

    def end(self, ended: Ended) -> None:
        """Take in the end of one request; with the last of them the call is answered."""
        slot = self._slots[self._requests.index(ended.request)]
        self._lane.move(slot, ended.request, Step.END)
        self._ended[ended.request] = ended
        if len(self._ended) < len(self._requests) or self.answer.done():
            return
        worst = _worst(self._ended.values())
        if worst is None:
            self.answer.set_result(self._outputs())
        else:
            self.answer.set_exception(_error(self._lane.spec, worst))

    def fail(self, error: LatebindError) -> None:
        """Answer the call with an error, whatever becomes of its requests."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _outputs(self) -> Answer:
        """Copy the outputs out of the slots."""
        slots = list(self._slots)
        ends = [self._ended[request] for request in self._requests]
        return Answer(
            outputs={
                spec.name: trimmed(rows[slots], spec)
                for spec, rows in zip(self._lane.spec.outputs, self._lane.outputs, strict=True)
            },
            left_at=tuple([end.stage for end in ends]),
            waited=tuple([end.waited for end in ends]),
            ran=tuple([end.ran for end in ends]),
            steps=tuple([tuple(self._steps[request]) for request in self._requests]) if self._steps else (),
            spec=self._lane.spec,
        )


def _worst(ended: Iterable[Ended]) -> Ended | None:
    """Return the end that speaks for the whole call: any that is not an answer."""
    return next((end for end in ended if end.outcome is not Outcome.ANSWERED), None)


def _error(spec: ModelSpec, end: Ended) -> LatebindError:
    who = _who(spec, end.stage)
    match end.outcome:
        case Outcome.REFUSED_FULL:
            return Refused(f"the queue of {who} is full: try again later")
        case Outcome.REFUSED_LATE:
            return Refused(f"{who} has too much to do to answer by the deadline: allow more time or try again later")
        case Outcome.EXPIRED:
            return Expired(f"the deadline passed before {who} had the answer: allow more time")
        case Outcome.NOT_LOADED:
            return Unavailable(
                f"{who} could not be brought into memory: try again later; the server's log says why, and `latebind "
                "models` whether its files are whole"
            )
        case _:
            failed = StepFailed if spec.steps else Failed
            return failed(f"{who} raised while it ran this request: the server's log says why")


def _who(spec: ModelSpec, stage: int) -> str:
    """Name whose fault it is: a model, or the step that a query came to."""
    if not spec.steps or stage < 0:
        return spec.name
    step = spec.steps[stage].name if stage < len(spec.steps) else "outputs"
    return f"step {step!r} of {spec.name}"
