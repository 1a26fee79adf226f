"""The door's side of an engine: starts its process, claims slots for rows, sends requests, receives their replies."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from typing import Self

import msgspec

from latebind.domain.errors import (
    ConfigError,
    NotFound,
    Unavailable,
)
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace
from latebind.engine.claim import Claim
from latebind.engine.ends import Ended, Stepped, Wrote
from latebind.engine.lane import Lane
from latebind.engine.messages import EndedReader
from latebind.engine.order import FORGET, PICTURE, TRACES, Adopt, Adopted, EngineOrder, EngineStarted
from latebind.engine.query_steps import steps_of_queries
from latebind.engine.reply_spin import ReplySpin
from latebind.engine.running import read_running
from latebind.engine.slots import Rows, SlotMemory, create_file
from latebind.forks import lending
from latebind.forks.client import Forked, ForkServer
from latebind.sequence.padding import room
from latebind.server.gateway import Answer, Snapshot

logger = logging.getLogger(__name__)

PROCESS, NAME = "latebind.engine.process", "latebind-engine"  # the module that runs, and its name in `top`
STOP_SECONDS = 10.0
CONTROL_BYTES = 1 << 24
PORTION = 4  # claims per write: the engine starts on these while the door reads further calls

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EngineClient:
    """A `Gateway` to one engine in a process of its own. Create it with `start`, end it with `close`.

    `models` are the models and queries that it serves. `deadlines` maps a query to the seconds that its requests get if
    they name no time-out; queries without such a default are left out. `on_lost` is called if the process ends without
    having been told to.
    """

    def __init__(self, process: Forked, control: Control, files: Sequence[int]) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.deadlines: Mapping[str, float] = {}
        self.too_large: Mapping[str, str] = {}
        self.on_lost: Callable[[], None] | None = None
        self._process = process
        self._control, self._control_writer = control
        self._control_lock = asyncio.Lock()
        self._slots, self._running = self._files = list(files)
        self._ran: tuple[int, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._lanes: dict[str, Lane] = {}
        self.sent: dict[int, Claim] = {}  # claims of requests that the engine has not answered, by request
        self._reply_spin = ReplySpin(self.sent)
        self._numbers = count(1)
        self._alive = False
        self._own = ExitStack()  # resources that end with this client
        self._emptied: asyncio.Event | None = None  # created by `close`, set when `sent` has become empty

    @classmethod
    async def start(cls, order: EngineOrder, forks: ForkServer | None = None) -> Self:
        """Start the process, let it load every model, and return when it serves. Raises what it could not load.

        Without `forks`, the client starts a fork server of its own, which ends with it.
        """
        with ExitStack() as own:
            client = await cls.prepare(order.log_format, forks or own.enter_context(lending.own()))
            await client.begin(order)
            client._own = own.pop_all()
        return client

    @classmethod
    async def prepare(cls, log_format: str, forks: ForkServer) -> Self:
        """Start a process that waits for its order; it serves nothing before `begin`.

        Raises `OSError` if the machine has no room for another process.
        """
        with ExitStack() as undo:
            files = create_file(), create_file()
            for file in files:
                undo.callback(os.close, file)
            pairs = socket.socketpair(), socket.socketpair()
            (messages, their_messages), (control, their_control) = pairs
            with their_messages, their_control:
                inherited = (*files, their_messages.fileno(), their_control.fileno())
                process = await forks.forked(PROCESS, [log_format], name=NAME, inherited=inherited)
            client = cls(process, await asyncio.open_connection(sock=control, limit=CONTROL_BYTES), files)
            undo.pop_all()
        loop = asyncio.get_running_loop()
        client._messages, _ = await loop.create_connection(lambda: EngineStream(client), sock=messages)
        return client

    async def begin(self, order: EngineOrder) -> None:
        """Let the process load every model and wait until it serves. On failure, end it and raise the reason."""
        try:
            await self._begin(order)
        except BaseException:
            await self.kill()
            raise

    @property
    def process_id(self) -> int:
        """The process id of the engine."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether no call holds slots or waits for some."""
        return not any(lane.busy for lane in self._lanes.values())

    def ran(self) -> tuple[int, ...]:
        """Return the indices (in the order) of the models that run now, or ran when the process ended.

        While models are loaded, it is the one being loaded.
        """
        return read_running(self._running) if self._files else self._ran

    def live(self) -> bool:
        """Return whether the engine's process is alive and serves."""
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        """Return whether the engine serves and, if a `model` is named, serves that one."""
        return self._alive and (model is None or model in self.models)

    async def claim(self, model: str, rows: int, *, deadline: float, priority: int = 0) -> Claim:
        """Return `rows` slots to fill, waiting in line if too few are free.

        Raises `Refused`, `Unavailable` or `NotFound`.
        """
        self.require_engine()
        lane = self._lanes.get(model)
        if lane is None:
            raise NotFound(f"there is no model {model!r:.140}")
        return Claim(self, lane, *await lane.claim(rows, deadline=deadline, priority=priority))

    def claim_now(self, model: str, rows: int) -> Claim | None:
        """Return `rows` slots to fill, or None if they cannot be had without waiting."""
        lane = self._lanes.get(model)
        places = None if lane is None or not self._alive else lane.claim_now(rows)
        return None if lane is None or places is None else Claim(self, lane, *places)

    async def infer(self, model: str, rows: Mapping[str, Rows], *, deadline: float) -> Answer:
        """Run rows `(N, *shape)` of every input as N requests due at `deadline` and return their outputs.

        Raises what `claim` and `Claim.send` raise. Cancelling this call cancels its requests.
        """
        with await self.claim(model, len(next(iter(rows.values()))), deadline=deadline) as claim:
            for spec in self.models[model].inputs:
                for place, row in zip(claim.rows[spec.name], rows[spec.name], strict=True):
                    room(place, row.shape, spec)[...] = row
            return await claim.send(deadline=deadline)

    def require_engine(self) -> None:
        """Raise `Unavailable` if the engine has ended."""
        if not self._alive:
            raise Unavailable("the engine ended before this request could run: send it again")

    def write(self, messages: bytes) -> None:
        """Queue messages of a claim; they are written with a few others of the same turn of the event loop.

        If the engine has ended, they are lost.
        """
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(messages)
        if len(self._unsent) == PORTION:
            self._flush()

    def _flush(self) -> None:
        if not self._unsent:
            return
        assert self._messages is not None
        if not self._messages.is_closing():  # uvloop raises if the other end has gone, even before it reports that
            self._messages.write(b"".join(self._unsent))
            self._reply_spin.sent()
        self._unsent.clear()

    async def metrics(self) -> Snapshot:
        """Return the engine's current metrics."""
        snapshot: Snapshot = msgspec.json.decode(await self._ask(b""))
        return snapshot

    async def picture(self) -> Picture:
        """Return what is queued and running in the engine at this moment."""
        return msgspec.json.decode(await self._ask(PICTURE), type=Picture)

    async def traces(self) -> Sequence[Trace]:
        """Return the traces of traced rows that have ended since the last call."""
        return msgspec.json.decode(await self._ask(TRACES), type=list[Trace])

    async def forget(self) -> None:
        """Reset the engine's metrics: the requests so far were trial requests."""
        await self._ask(FORGET)

    async def adopt(self, model: str, version: str) -> None:
        """Let the engine use a version of a model's learned caches from its next batch on. Raises `ConfigError`."""
        adopted = msgspec.json.decode(await self._ask(msgspec.json.encode(Adopt(model, version))), type=Adopted)
        if adopted.error is not None:
            raise ConfigError(adopted.error)

    async def close(self, grace: float = STOP_SECONDS, *, patience: float = STOP_SECONDS) -> None:
        """Wait up to `grace` seconds for requests in flight, then end the process.

        A process that does not end within `patience` more seconds is killed.
        """
        self.on_lost = None
        if self.sent:
            self._emptied = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), grace)
        await self._end(patience)

    async def kill(self) -> None:
        """Kill the process at once; requests in flight are answered with `Unavailable`."""
        self.on_lost = None
        self._process.kill()
        await self._end(STOP_SECONDS)

    async def _end(self, patience: float) -> None:
        """Close our ends of the sockets and wait for the process; kill it if it does not end by itself."""
        if self._messages is not None:
            self._messages.close()
        self._control_writer.close()
        try:
            await asyncio.to_thread(self._process.wait, patience)
        except TimeoutError:
            logger.error("the engine did not end within %g s: it is killed", patience)
            self._process.kill()
            self._process.wait()
        self._ran = self.ran()
        self._lanes = {}  # frees the mapped slots
        while self._files:
            os.close(self._files.pop())
        self._own.close()

    def receive(self, ended: Ended | Stepped | Wrote) -> None:
        """Handle the end of one request, of one step of a query, or of one token."""
        if isinstance(ended, Stepped):
            self.sent[ended.request].step(ended)
        elif isinstance(ended, Wrote):
            self.sent[ended.request].wrote(ended.tokens)
        else:
            self._reply_spin.replied()
            self.sent.pop(ended.request).end(ended)
            if not self.sent and self._emptied is not None:
                self._emptied.set()

    def engine_lost(self) -> None:
        """Answer everything in flight with `Unavailable`, because the engine has gone."""
        served, self._alive = self._alive, False
        error = Unavailable("the engine ended while this request ran: send it again")
        for claim in set(self.sent.values()):
            claim.fail(error)
        for lane in self._lanes.values():
            lane.fail_waiting(error)
        self.sent.clear()
        if self._emptied is not None:
            self._emptied.set()
        if served and self.on_lost is not None:
            self.on_lost()

    async def _begin(self, order: EngineOrder) -> None:
        """Send the order, read the answer, and map the slots that it describes."""
        self._control_writer.write(msgspec.json.encode(order) + b"\n")
        started = msgspec.json.decode(await self._line(), type=EngineStarted)
        if started.error is not None:
            raise ConfigError(started.error)
        memory = SlotMemory(self._slots, started.models, started.rows)
        self.models = {spec.name: spec for spec in started.models}
        self.deadlines, self.too_large = started.deadlines, started.too_large
        steps = steps_of_queries(self.models, memory.by_name, order.engine.slots)
        self._lanes = {
            spec.name: Lane(number, spec, rows.first(order.engine.slots), self._numbers, steps.get(spec.name))
            for number, (spec, rows) in enumerate(zip(started.models, memory.models, strict=True))
        }
        self._alive = True

    async def _ask(self, line: bytes) -> bytes:
        """Send a control line and return the engine's answer. Raises `Unavailable`.

        The answer is read even if this call is cancelled, so that the next one does not read it as its own.
        """
        self.require_engine()
        return await asyncio.shield(self._say(line))

    async def _say(self, line: bytes) -> bytes:
        async with self._control_lock:
            if not self._control_writer.is_closing():  # it may have closed while this call waited; uvloop would raise
                self._control_writer.write(line + b"\n")
            return await self._line()

    async def _line(self) -> bytes:
        try:
            line = await self._control.readline()
        except ConnectionError:  # the engine was killed with some of our lines unread
            line = b""
        if not line:
            raise Unavailable("the engine has ended: its last words are in the log")
        return line


class EngineStream(asyncio.Protocol):
    """The stream of messages from the engine; passes them to the client."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._reader = EndedReader()

    def data_received(self, data: bytes) -> None:
        """Pass on the requests, steps and tokens that have ended."""
        for ended in self._reader.feed(data):
            self._client.receive(ended)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the engine has gone."""
        del exc
        self._client.engine_lost()
