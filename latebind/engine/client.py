"""The frontend's side of an engine: its process, orders and questions to it, and whether it makes progress.

The calls that it answers are those of `claims`.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from typing import Self, TypeVar

import msgspec

from latebind.domain.errors import ConfigError, Unavailable, WrongQuery
from latebind.domain.picture import Picture
from latebind.domain.query import lay_out_options
from latebind.domain.tracing import Trace
from latebind.engine.claims import Claims, EngineCalls
from latebind.engine.order import FORGET, PICTURE, TRACES, Adopt, EngineOrder, EngineStarted, InUse
from latebind.engine.shared import IDLE, LISTENER, LOAD_SECONDS, LOADS, LOOK_SECONDS, PLACE, Watched, models_of
from latebind.engine.slots import SlotMemory, create_file
from latebind.forks.client import Forked, ForkServer, fork_server
from latebind.server.gateway import Snapshot

logger = logging.getLogger(__name__)

PROCESS, NAME = "latebind.engine.process", "latebind-engine"  # the module that runs, and its name in `top`
STOP_SECONDS = 10.0
IDLE_LOOK_SECONDS = 0.02
CONTROL_BYTES = 1 << 24
ANSWER_SECONDS = 10.0  # that an engine has for an answer on the control stream

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]
T = TypeVar("T")


class EngineClient(EngineCalls):
    """A `Gateway` to one engine in a process of its own. Create it with `start`, end it with `close`.

    `order` names the models as they were ordered. `deadlines` maps a query to the seconds that its requests get if they
    name no time-out; queries without such a default are left out. `caches` is the version of the learned caches that
    each model uses, as last reported by the engine; each answer has its own (`Answer.caches`).
    """

    def __init__(self, process: Forked, control: Control, files: Sequence[int]) -> None:
        super().__init__()
        self.order: Sequence[str] = ()
        self.deadlines: Mapping[str, float] = {}
        self.caches: dict[str, InUse] = {}
        self.process_id = process.pid
        self._process = process
        self._control, self._control_writer = control
        self._control_lock = asyncio.Lock()
        self._asked: float | None = None  # when a question without an answer yet was asked
        self._slots, self._places = self._files = list(files)
        self._watched = Watched(self._places)
        self._ran: tuple[int, ...] | None = None  # known once the process is to end
        self._own = ExitStack()  # resources that end with this client

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
        client._messages, _ = await client.loop.create_connection(lambda: client, sock=messages)
        return client

    async def begin(self, order: EngineOrder, loading: Callable[[int], None] | None = None) -> None:
        """Let the process load every model and wait until it serves. On failure, end it and raise the reason.

        Meanwhile `loading` is called now and then with the model being loaded, by its place in the order.
        """
        try:  # on behalf of the engine, which has not begun yet
            os.pwrite(self._places, PLACE.pack(time.monotonic() + LOAD_SECONDS, IDLE, LOADS), LISTENER * PLACE.size)
            self._control_writer.write(msgspec.json.encode(order) + b"\n")
            started = msgspec.json.decode(await self._first_line(loading), type=EngineStarted)
            if started.error is not None:
                raise WrongQuery(started.error, started.query) if started.query else ConfigError(started.error)
        except BaseException:
            await self.kill()
            raise
        memory = SlotMemory(self._slots, started.models, started.rows)
        self.extents = memory.extents()
        self.models = {spec.name: spec for spec in started.models}
        self.order = [spec.name for spec in started.models if not spec.steps]
        self.deadlines, self.too_large = started.deadlines, started.too_large
        self.caches = dict(started.caches)
        queries = {name: [step.models for step in spec.steps] for name, spec in self.models.items() if spec.steps}
        first = lay_out_options(self.order, queries, started.slots).first
        numbers = count(1)
        for number, (spec, rows) in enumerate(zip(started.models, memory.models, strict=True)):
            step_rows = {
                (step.name, model): (self.models[model], memory.by_name[model], row)
                for step, firsts in zip(spec.steps, first.get(spec.name, ()), strict=True)
                for model, row in zip(step.models, firsts, strict=True)
            }
            self._claims[spec.name] = Claims(self, number, spec, rows, started.slots, numbers, step_rows)
        self._alive = True

    def ran(self) -> tuple[int, ...]:
        """Return the indices (in the order) of the models that run now, or ran when the process ended.

        While models are loaded, it is the one being loaded. For an engine that was killed because it hung, it is those
        that were late.
        """
        return models_of(self._watched.places()) if self._ran is None else self._ran

    def live(self) -> bool:
        """Return whether the engine's process is alive and serves."""
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        """Return whether the engine serves, does not hang, and serves that `model` if one is named."""
        return self._alive and not self.late and (model is None or model in self.models)

    @property
    def late(self) -> float:
        """For how many seconds work of the engine has been late; 0 if none is (`look`)."""
        return self._watched.seconds

    def look(self, patience: float = inf) -> None:
        """Check whether the engine makes progress, and log when it hangs.

        To be called every `LOOK_SECONDS`. An engine that has hung for `patience` seconds is killed; then the same
        follows as when one dies by itself.
        """
        before = self.late
        self._watched.look()
        late = self._watched.described(self.order)
        if self.late and not before:
            logger.error("the engine hangs: %s", late)
        elif before and not self.late:
            logger.warning("the engine makes progress again")
        if self.late > patience:
            logger.error("the engine has hung for %.1f s and is killed: %s", self.late, late)
            self._ran = models_of(place for place, late in self._watched.late.items() if late) or self.ran()
            self._process.kill()
            assert self._messages is not None
            self._messages.abort()  # the process may take its time to die

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
        answers later, it uses the version from then on.
        """

        def parse(line: bytes) -> None:
            refused = msgspec.json.decode(line, type=str | None)
            if refused is not None:
                raise ConfigError(refused)
            self.caches[model] = replace(self.caches[model], version=version)

        await self._ask(msgspec.json.encode(Adopt(model, version)), parse)

    @property
    def owes_answer(self) -> float:
        """For how many seconds a question on the control stream has had no answer."""
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    async def _ask(self, line: bytes, parse: Callable[[bytes], T]) -> T:
        """Send a control line and return the engine's answer as `parse` reads it. Raises `Unavailable`.

        The answer is read even if this call is cancelled or waits no longer, so the next one does not take it for its
        own.
        """
        self.require_engine()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(self._exchange(line, parse))
        except TimeoutError:
            raise Unavailable(f"the engine has not answered for {ANSWER_SECONDS:g} s: try again later") from None

    async def _exchange(self, line: bytes, parse: Callable[[bytes], T]) -> T:
        async with self._control_lock:
            self._asked = time.monotonic()
            try:
                if not self._control_writer.is_closing():  # it may have closed while this waited; uvloop would raise
                    self._control_writer.write(line + b"\n")
                return parse(await self._line())
            finally:
                self._asked = None

    async def _first_line(self, loading: Callable[[int], None] | None) -> bytes:
        """Return the answer to the order, once all models are loaded. Raises `Unavailable` if loading hangs."""
        line = asyncio.ensure_future(self._line())
        try:
            while not line.done():
                await asyncio.wait({line}, timeout=LOOK_SECONDS)
                self.look()
                if loading is not None:
                    for number in self.ran()[:1]:
                        loading(number)
                if self.late:
                    raise Unavailable("the engine hangs while it loads its models: the log says in which one")
            return line.result()
        finally:
            line.cancel()

    async def _line(self) -> bytes:
        try:
            line = await self._control.readline()
        except ConnectionError:  # the engine was killed with some of our lines unread
            line = b""
        if not line:
            raise Unavailable("the engine has ended: the log has its last messages")
        return line

    async def close(self, grace: float = STOP_SECONDS, *, patience: float = STOP_SECONDS) -> None:
        """Wait up to `grace` seconds until no call holds slots or waits for some, then end the process.

        A process that does not end within `patience` more seconds is killed.
        """
        self.on_lost, until = None, time.monotonic() + grace
        while self._alive and any(claims.busy for claims in self._claims.values()) and time.monotonic() < until:
            await asyncio.sleep(IDLE_LOOK_SECONDS)
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
        if not await asyncio.to_thread(self._process.end, patience):
            logger.error("the engine did not end within %g s: it was killed", patience)
        self._ran = self.ran()
        self._claims = {}  # frees the mapped slots
        while self._files:
            os.close(self._files.pop())
        self._own.close()
