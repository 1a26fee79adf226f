"""The door's end of the engine: starts its process, claims slots for rows and waits for their requests to end."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Self

import msgspec

from latebind.domain.actions import Outcome
from latebind.domain.errors import (
    ConfigError,
    Expired,
    Failed,
    LatebindError,
    NotFound,
    Refused,
    StepFailed,
    Unavailable,
)
from latebind.domain.model import ModelSpec
from latebind.engine.lane import Lane
from latebind.engine.messages import Ended, EndedReader, Stepped, pack_arrived, pack_cancelled
from latebind.engine.order import FORGET, Adopt, Adopted, EngineOrder, EngineStarted
from latebind.engine.pool import Step
from latebind.engine.running import read_running
from latebind.engine.slots import Rows, SlotMemory, create_file
from latebind.sequence.padding import room, steps, trimmed
from latebind.server.gateway import Answer, Snapshot, StepAnswer

logger = logging.getLogger(__name__)

STOP_SECONDS = 10.0
CONTROL_BYTES = 1 << 24

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Claim:
    """The slots of one call, from the moment they are its own until it lets go of them. `EngineClient.claim` makes it.

    `rows` are, by input, the rows of the slots, for the owner to fill before it sends them.
    """

    __slots__ = ("_client", "_ended", "_lane", "_requests", "_slots", "_steps", "answer", "rows")

    def __init__(self, client: "EngineClient", lane: Lane, requests: tuple[int, ...], slots: tuple[int, ...]) -> None:
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

    async def send(self, *, deadline: float, priority: int = 0) -> Answer:
        """Have the engine run the rows, which are filled, by `deadline` and return their outputs.

        Of those that wait for the model, `priority` 1 goes first and 0 last.
        Raises `Refused`, `Expired`, `Failed` or `Unavailable`; cancelling this call cancels its requests.
        """
        lane, client = self._lane, self._client
        client.require_engine()
        for request, slot in zip(self._requests, self._slots, strict=True):
            lane.move(slot, request, Step.SEND)
            client.sent[request] = self
        lengths = steps(lane.spec, self.rows)
        client.write(pack_arrived(lane.number, deadline, self._requests, self._slots, lengths, priority))
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


class EngineClient:
    """A `Gateway` to an engine in a process of its own. Make one with `start`, end it with `close`.

    `models` are what it serves, queries among them; `deadlines` are the seconds of requests for queries that name no
    time-out, of those that have such. `on_lost` is called where the process ends before it was told to.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: Control, files: Sequence[int]) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.deadlines: Mapping[str, float] = {}
        self.on_lost: Callable[[], None] | None = None
        self._process = process
        self._control, self._control_writer = control
        self._control_lock = asyncio.Lock()
        self._slots, self._running = self._files = list(files)
        self._ran: tuple[int, ...] = ()
        self._messages: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._lanes: dict[str, Lane] = {}
        self.sent: dict[int, Claim] = {}  # what the engine has, by request
        self._numbers = count(1)
        self._alive = False

    @classmethod
    async def start(cls, order: EngineOrder) -> Self:
        """Start the process, have it load every model and wait until it serves; raises what it could not load."""
        client = await cls.prepare()
        await client.begin(order)
        return client

    @classmethod
    async def prepare(cls) -> Self:
        """Start a process that imports what it needs and waits; it serves nothing before `begin`."""
        slots, running = create_file(), create_file()
        messages, their_messages = socket.socketpair()
        control, their_control = socket.socketpair()
        inherited = (slots, running, their_messages.fileno(), their_control.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "latebind.engine.process", *map(str, inherited)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
        )
        their_messages.close()
        their_control.close()
        client = cls(process, await asyncio.open_connection(sock=control, limit=CONTROL_BYTES), (slots, running))
        loop = asyncio.get_running_loop()
        client._messages, _ = await loop.create_connection(lambda: EngineStream(client), sock=messages)
        return client

    async def begin(self, order: EngineOrder) -> None:
        """Have it load every model and wait until it serves; where it cannot, it ends, and this raises why."""
        try:
            await self._begin(order)
        except BaseException:
            await self.kill()
            raise

    @property
    def process_id(self) -> int:
        """The number of the engine's process."""
        return self._process.pid

    @property
    def waits(self) -> bool:
        """Whether the process is there and has no order yet."""
        return not self._alive and self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Whether nobody has slots or waits for some."""
        return not any(lane.busy for lane in self._lanes.values())

    def ran(self) -> tuple[int, ...]:
        """Return which models of the order run now, or ran as the process ended; or which is being loaded."""
        return read_running(self._running) if self._files else self._ran

    def live(self) -> bool:
        """Whether the engine's process is there."""
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        """Whether the engine serves, and `model` is among what it serves."""
        return self._alive and (model is None or model in self.models)

    async def claim(self, model: str, rows: int, *, deadline: float) -> Claim:
        """Return so many slots to fill, once it is this call's turn. Raises `Refused` or `Unavailable`."""
        self.require_engine()
        lane = self._lanes.get(model)
        if lane is None:
            raise NotFound(f"there is no model {model!r:.140}")
        return Claim(self, lane, *await lane.claim(rows, deadline=deadline))

    async def infer(self, model: str, rows: Mapping[str, Rows], *, deadline: float) -> Answer:
        """Run rows `(N, *shape)` of every input as N requests due at `deadline` and return their outputs.

        Raises what `claim` and `Claim.send` raise; cancelling this call cancels its requests.
        """
        with await self.claim(model, len(next(iter(rows.values()))), deadline=deadline) as claim:
            for spec in self.models[model].inputs:
                for place, row in zip(claim.rows[spec.name], rows[spec.name], strict=True):
                    room(place, row.shape, spec)[...] = row
            return await claim.send(deadline=deadline)

    def require_engine(self) -> None:
        """Raise `Unavailable` where the engine has ended."""
        if not self._alive:
            raise Unavailable("the engine ended before this request could run: send it again")

    def write(self, messages: bytes) -> None:
        """Send messages of a claim, with others of this turn of the loop; nobody hears them if the engine has ended."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(messages)

    def _flush(self) -> None:
        assert self._messages is not None
        self._messages.write(b"".join(self._unsent))
        self._unsent.clear()

    async def metrics(self) -> Snapshot:
        """Return the engine's figures of this moment."""
        self.require_engine()
        async with self._control_lock:
            self._control_writer.write(b"\n")
            snapshot: Snapshot = msgspec.json.decode(await self._line())
            return snapshot

    async def forget(self) -> None:
        """Have the engine count from now; what was asked until now was a trial."""
        self.require_engine()
        async with self._control_lock:
            self._control_writer.write(FORGET + b"\n")
            await self._line()

    async def adopt(self, model: str, version: str) -> None:
        """Have the engine use a version of a model's learned caches from its next batch on; raises `ConfigError`."""
        self.require_engine()
        async with self._control_lock:
            self._control_writer.write(msgspec.json.encode(Adopt(model, version)) + b"\n")
            adopted = msgspec.json.decode(await self._line(), type=Adopted)
        if adopted.error is not None:
            raise ConfigError(adopted.error)

    async def close(self, grace: float = STOP_SECONDS, *, patience: float = STOP_SECONDS) -> None:
        """Wait up to `grace` seconds for what is in flight, then end the process, by force after `patience` more."""
        self.on_lost = None
        pending = {claim.answer for claim in self.sent.values()}
        if pending:
            await asyncio.wait(pending, timeout=grace)
        await self._end(patience)

    async def kill(self) -> None:
        """End the process at once; what is in flight is answered so."""
        self.on_lost = None
        self._process.kill()
        await self._end(STOP_SECONDS)

    async def _end(self, patience: float) -> None:
        """Close our ends and wait for the process; one that does not end by itself is killed."""
        if self._messages is not None:
            self._messages.close()
        self._control_writer.close()
        try:
            await asyncio.to_thread(self._process.wait, patience)
        except subprocess.TimeoutExpired:
            logger.error("the engine did not end within %g s: it is killed", patience)
            self._process.kill()
            self._process.wait()
        self._ran = self.ran()
        while self._files:
            os.close(self._files.pop())

    def receive(self, ended: Ended | Stepped) -> None:
        """Take in the end of one request, or of a step of one."""
        if isinstance(ended, Stepped):
            self.sent[ended.request].step(ended)
        else:
            self.sent.pop(ended.request).end(ended)

    def lose(self) -> None:
        """The engine has gone: everything in flight is answered so."""
        served, self._alive = self._alive, False
        error = Unavailable("the engine ended while this request ran: send it again")
        for claim in set(self.sent.values()):
            claim.fail(error)
        for lane in self._lanes.values():
            lane.lose(error)
        self.sent.clear()
        if served and self.on_lost is not None:
            self.on_lost()

    async def _begin(self, order: EngineOrder) -> None:
        """Send the order; with the answer map the slots."""
        self._control_writer.write(msgspec.json.encode(order) + b"\n")
        started = msgspec.json.decode(await self._line(), type=EngineStarted)
        if started.error is not None:
            raise ConfigError(started.error)
        memory = SlotMemory(self._slots, started.models, started.rows)
        self.models = {spec.name: spec for spec in started.models}
        self.deadlines = started.deadlines
        self._lanes = {
            spec.name: Lane(number, spec, rows.first(order.engine.slots), self._numbers)
            for number, (spec, rows) in enumerate(zip(started.models, memory.models, strict=True))
        }
        self._alive = True

    async def _line(self) -> bytes:
        line = await self._control.readline()
        if not line:
            raise Unavailable("the engine has ended: its last words are in the log")
        return line


class EngineStream(asyncio.Protocol):
    """Passes what the engine sends to its client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._reader = EndedReader()

    def data_received(self, data: bytes) -> None:
        """Hand over the requests and steps that have ended."""
        for ended in self._reader.feed(data):
            self._client.receive(ended)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the engine has gone."""
        del exc
        self._client.lose()


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
