"""The frontend's side of an engine: starts its process, claims slots for rows, sends requests, receives replies."""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import Any, Self, TypeVar

import msgspec

from latebind.domain.errors import ConfigError, NotFound, Unavailable
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.query import lay_out_options
from latebind.domain.tracing import Trace
from latebind.engine.claim import Claim, Claims
from latebind.engine.messages import Ended, EndedReader, Stepped, Wrote
from latebind.engine.order import FORGET, PICTURE, TRACES, Adopt, EngineOrder, EngineStarted, InUse
from latebind.engine.running import LOOK_SECONDS, Watched, models_of, note_start
from latebind.engine.slots import Rows, SlotMemory, create_file
from latebind.forks.client import Forked, ForkServer, fork_server
from latebind.sequence.padding import room
from latebind.server.gateway import Answer, Snapshot

logger = logging.getLogger(__name__)

PROCESS, NAME = "latebind.engine.process", "latebind-engine"  # the module that runs, and its name in `top`
STOP_SECONDS = 10.0
CONTROL_BYTES = 1 << 24
ANSWER_SECONDS = 10.0  # that an engine has for an answer on the control stream
EXPIRE_SECONDS = 0.005  # between two looks for calls whose deadline has passed
LATEST_SECONDS = 0.05  # beyond a deadline in which the engine may say itself what became of the call: it knows more

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]
T = TypeVar("T")


class EngineClient:
    """A `Gateway` to one engine in a process of its own. Create it with `start`, end it with `close`.

    `models` are the models and queries that it serves. `deadlines` maps a query to the seconds that its requests get if
    they name no time-out; queries without such a default are left out. `caches` is what the engine reported last of the
    learned caches that each model uses; answers say it for themselves (`Answer.caches`). `on_lost` is called if the
    process ends without having been told to.
    """

    def __init__(self, process: Forked, control: Control, files: Sequence[int]) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.deadlines: Mapping[str, float] = {}
        self.too_large: Mapping[str, str] = {}
        self.caches: dict[str, InUse] = {}
        self.on_lost: Callable[[], None] | None = None
        self._process = process
        self._control, self._control_writer = control
        self._control_lock = asyncio.Lock()
        self._slots, self._running = self._files = list(files)
        self._ran: tuple[int, ...] | None = None  # known once the process is to end
        self.loop = asyncio.get_running_loop()
        self._messages: asyncio.Transport | None = None
        self._unsent: list[bytes] = []  # messages of this turn of the event loop
        self._claims: dict[str, Claims] = {}
        self.sent: dict[int, Claim] = {}  # claims of requests that the engine has not answered, by request
        self.lost_calls = Counter[str]()  # that were under way when the engine was lost, by model
        self._alive = False
        self._expires = inf  # when claims are looked through for those whose deadline has passed
        self._expiring: asyncio.TimerHandle | None = None
        self._watched = Watched(self._running)
        self._asked: list[float] = []  # when the questions were asked that have no answer yet
        self._own = ExitStack()  # resources that end with this client
        self._emptied: asyncio.Event | None = None  # created by `close`, set when `sent` has become empty

    @classmethod
    async def start(cls, order: EngineOrder, forks: ForkServer | None = None) -> Self:
        """Start the process, let it load every model, and return when it serves. Raises what it could not load.

        Without `forks`, the client starts a fork server of its own, which ends with it.
        """
        with ExitStack() as own:
            client = await cls.prepare(order.log_format, forks or own.enter_context(fork_server()))
            await client.begin(order)
            client._own = own.pop_all()
        return client

    @classmethod
    async def prepare(cls, log_format: str, forks: ForkServer, imports: Sequence[str] = ()) -> Self:
        """Start a process that waits for its order; it serves nothing before `begin`.

        `imports` are modules that its backends need (`backend_imports`). Raises `OSError` if the machine has no room
        for another process.
        """
        with ExitStack() as undo:
            files = create_file(), create_file()
            for file in files:
                undo.callback(os.close, file)
            pairs = socket.socketpair(), socket.socketpair()
            (messages, their_messages), (control, their_control) = pairs
            with their_messages, their_control:
                inherited = (*files, their_messages.fileno(), their_control.fileno())
                process = await forks.forked(PROCESS, [log_format], name=NAME, inherited=inherited, imports=imports)
            client = cls(process, await asyncio.open_connection(sock=control, limit=CONTROL_BYTES), files)
            undo.pop_all()
        loop = asyncio.get_running_loop()
        client._messages, _ = await loop.create_connection(lambda: EngineStream(client), sock=messages)
        return client

    async def begin(self, order: EngineOrder) -> None:
        """Let the process load every model and wait until it serves. On failure, end it and raise the reason."""
        try:
            note_start(self._running)
            self._control_writer.write(msgspec.json.encode(order) + b"\n")
            started = msgspec.json.decode(await self._first_line(), type=EngineStarted)
            if started.error is not None:
                raise ConfigError(started.error)
        except BaseException:
            await self.kill()
            raise
        memory = SlotMemory(self._slots, started.models, started.rows)
        self.models = {spec.name: spec for spec in started.models}
        self.deadlines, self.too_large = started.deadlines, started.too_large
        self.caches = dict(started.caches)
        queries = {name: [step.models for step in spec.steps] for name, spec in self.models.items() if spec.steps}
        slots = order.engine.slots
        first = lay_out_options([name for name in self.models if name not in queries], queries, slots).first
        numbers = count(1)
        for number, (spec, rows) in enumerate(zip(started.models, memory.models, strict=True)):
            step_rows = {
                (step.name, model): (self.models[model], memory.by_name[model], row)
                for step, firsts in zip(spec.steps, first.get(spec.name, ()), strict=True)
                for model, row in zip(step.models, firsts, strict=True)
            }
            self._claims[spec.name] = Claims(self, number, spec, rows.first(slots), numbers, step_rows)
        self._alive = True

    @property
    def process_id(self) -> int:
        """The process id of the engine."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether no call holds slots or waits for some."""
        return not any(claims.busy for claims in self._claims.values())

    def ran(self) -> tuple[int, ...]:
        """Return the indices (in the order) of the models that run now, or ran when the process ended.

        While models are loaded, it is the one being loaded. Of an engine that was killed because it stood still, it is
        those that were late.
        """
        return models_of(self._watched.places()) if self._ran is None else self._ran

    def live(self) -> bool:
        """Return whether the engine's process is alive and serves."""
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        """Return whether the engine serves, and goes on with its work, and serves that `model` if one is named."""
        return self._alive and not self._watched.stands_still() and (model is None or model in self.models)

    @property
    def late(self) -> float:
        """For how many seconds something has been late that the engine does; 0 if nothing is (`look`)."""
        return self._watched.seconds

    def look(self) -> None:
        """Look whether the engine goes on with what it does, and log when it stands still.

        To be called every `LOOK_SECONDS`.
        """
        before = self.late
        self._watched.look()
        if self.late and not before:
            logger.error("the engine stands still: %s", self._standing())
        elif before and not self.late:
            logger.warning("the engine goes on")

    def abandon(self) -> None:
        """Kill an engine that stands still; what follows is what follows when one dies by itself."""
        logger.error("the engine has stood still for %.1f s and is killed: %s", self.late, self._standing())
        self._ran = models_of(place for place, late in self._watched.late.items() if late) or self.ran()
        self._process.kill()
        assert self._messages is not None
        self._messages.abort()  # the process may take its time to die

    def claim(self, model: str, rows: int, *, deadline: float, priority: int = 0) -> Coroutine[Any, Any, Claim]:
        """Return `rows` slots to fill, waiting in line if too few are free.

        Raises `Refused`, `Expired`, `Unavailable` or `NotFound`.
        """
        self.require_engine()
        claims = self._claims.get(model)
        if claims is None:
            raise NotFound(f"there is no model {model!r:.140}")
        return claims.claim(rows, deadline=deadline, priority=priority)

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
        """Send messages of a claim, together with those of other calls that the event loop serves in the same turn.

        If the engine has ended, they are lost. Each write wakes the engine: one for every call took a third of the
        frontend's time.
        """
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(messages)

    def _flush(self) -> None:
        assert self._messages is not None
        messages, self._unsent = b"".join(self._unsent), []
        if not self._messages.is_closing():  # uvloop raises if the other end has gone, even before it reports that
            self._messages.write(messages)

    async def metrics(self) -> Snapshot:
        """Return the engine's current metrics. Raises `Unavailable`, as all questions do."""
        found: Snapshot = await self._ask(b"", msgspec.json.decode)
        return found

    async def picture(self) -> Picture:
        """Return what is queued and running in the engine at this moment."""
        return await self._ask(PICTURE, partial(msgspec.json.decode, type=Picture))

    async def traces(self) -> Sequence[Trace]:
        """Return the traces of traced rows that have ended since the last call."""
        return await self._ask(TRACES, partial(msgspec.json.decode, type=list[Trace]))

    async def forget(self) -> None:
        """Reset the engine's metrics: the requests so far were trial requests."""
        await self._ask(FORGET, bytes)

    async def adopt(self, model: str, version: str) -> None:
        """Let the engine use a version of a model's learned caches from its next batch on.

        Raises `ConfigError` if it cannot, `Unavailable` if it has ended, or has not answered in `ANSWER_SECONDS`: if it
        goes on later, it takes the version up then.
        """

        def heard(line: bytes) -> None:
            refused = msgspec.json.decode(line, type=str | None)
            if refused is not None:
                raise ConfigError(refused)
            self.caches[model] = replace(self.caches[model], version=version)

        await self._ask(msgspec.json.encode(Adopt(model, version)), heard)

    @property
    def owes_answer(self) -> float:
        """For how many seconds the oldest question on the control stream has had no answer."""
        return time.monotonic() - self._asked[0] if self._asked else 0.0

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
        if self._expiring is not None:
            self._expiring.cancel()
        if not await asyncio.to_thread(self._process.end, patience):
            logger.error("the engine did not end within %g s: it was killed", patience)
        self._ran = self.ran()
        self._claims = {}  # frees the mapped slots
        while self._files:
            os.close(self._files.pop())
        self._own.close()

    def receive(self, ended: Ended | Stepped | Wrote) -> None:
        """Handle the end of one request, of one step of a query, or of one token."""
        if isinstance(ended, Ended):
            self.sent.pop(ended.request).end(ended)
            if not self.sent and self._emptied is not None:
                self._emptied.set()
        elif isinstance(ended, Stepped):
            self.sent[ended.request].step(ended)
        else:
            self.sent[ended.request].wrote(ended.tokens)

    def watch(self, deadline: float) -> None:
        """Tell claims at their deadline, however the engine fares: at this one, if it is before all others."""
        if deadline < self._expires:
            self._expires = deadline
            if self._expiring is not None:
                self._expiring.cancel()
            seconds = max(deadline + LATEST_SECONDS - time.monotonic(), EXPIRE_SECONDS)
            self._expiring = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Tell the claims whose deadline has passed, and be called again for the others."""
        self._expires, self._expiring = inf, None
        now = time.monotonic() - LATEST_SECONDS
        self.watch(min([claim.expire(now) for claim in list(self.sent.values())], default=inf))

    def _standing(self) -> str:
        return self._watched.described([name for name, spec in self.models.items() if not spec.steps])

    def engine_lost(self) -> None:
        """Answer everything in flight with `Unavailable`, because the engine has gone."""
        served, self._alive = self._alive, False
        error = Unavailable("the engine ended while this request ran: send it again")
        lost = set(self.sent.values())
        self.lost_calls = Counter(claim.spec.name for claim in lost)
        for claim in lost:
            claim.fail(error)
        for model in self._claims.values():
            model.fail_waiting(error)
        self.sent.clear()
        if self._emptied is not None:
            self._emptied.set()
        if served and self.on_lost is not None:
            self.on_lost()

    async def _ask(self, line: bytes, heard: Callable[[bytes], T]) -> T:
        """Send a control line and return what `heard` makes of the engine's answer. Raises `Unavailable`.

        The answer is heard even if this call is cancelled or waits no longer; the next one does not read it as its own.
        """
        self.require_engine()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(self._say(line, heard))
        except TimeoutError:
            raise Unavailable(f"the engine has not answered for {ANSWER_SECONDS:g} s: try again later") from None

    async def _say(self, line: bytes, heard: Callable[[bytes], T]) -> T:
        self._asked.append(time.monotonic())
        try:
            async with self._control_lock:
                if not self._control_writer.is_closing():  # it may have closed while this waited; uvloop would raise
                    self._control_writer.write(line + b"\n")
                return heard(await self._line())
        finally:
            self._asked.pop(0)

    async def _first_line(self) -> bytes:
        """Return the answer to the order, once all models are loaded. Raises `Unavailable` if that stands still."""
        line = asyncio.ensure_future(self._line())
        try:
            while not line.done():
                await asyncio.wait({line}, timeout=LOOK_SECONDS)
                self.look()
                if self.late:
                    raise Unavailable("the engine stands still while it loads its models: the log says in which")
            return line.result()
        finally:
            line.cancel()

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
