"""The door's end of the engine: starts its process, writes rows into slots and waits for their requests to end."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import msgspec

from latebind.domain.actions import Outcome
from latebind.domain.errors import ConfigError, Expired, Failed, LatebindError, Refused, Unavailable
from latebind.domain.model import ModelSpec
from latebind.engine.messages import Ended, EndedReader, pack_arrived, pack_cancelled
from latebind.engine.order import Adopt, Adopted, EngineOrder, EngineStarted
from latebind.engine.slots import ModelSlots, Rows, SlotMemory, create_file
from latebind.sequence.padding import filled, steps, trimmed
from latebind.server.gateway import Answer, Snapshot

logger = logging.getLogger(__name__)

STOP_SECONDS = 10.0
CONTROL_BYTES = 1 << 24

Control = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, eq=False)
class Call:
    """One client call under way: a request and a slot for each of its rows."""

    lane: "Lane"
    requests: tuple[int, ...]
    slots: tuple[int, ...]
    done: asyncio.Future[Answer]
    ended: dict[int, Ended] = field(default_factory=dict)


class Lane:
    """One model at the door: its number in messages, its slots and which of them are free."""

    def __init__(self, number: int, spec: ModelSpec, rows: ModelSlots, slots: int) -> None:
        self.number = number
        self.spec = spec
        self.rows = rows
        self._free = list(range(slots - 1, -1, -1))

    def take(self, wanted: int) -> tuple[int, ...]:
        """Return `wanted` free slots, or raise `Refused`."""
        if wanted > len(self._free):
            raise Refused(f"{self.spec.name} has {len(self._free)} of the {wanted} places needed: try again later")
        return tuple(self._free.pop() for _ in range(wanted))

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Free slots again."""
        self._free.extend(reversed(slots))


class EngineClient:
    """A `Gateway` to an engine in a process of its own. Make one with `start`, end it with `close`."""

    def __init__(self, process: subprocess.Popen[bytes], control: Control) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self._process = process
        self._control, self._control_writer = control
        self._control_lock = asyncio.Lock()
        self._messages: asyncio.Transport | None = None
        self._lanes: dict[str, Lane] = {}
        self._calls: dict[int, Call] = {}
        self._numbers = count(1)
        self._alive = False

    @classmethod
    async def start(cls, order: EngineOrder) -> Self:
        """Start the process, have it load every model and wait until it serves; raises what it could not load."""
        slots = create_file()
        messages, their_messages = socket.socketpair()
        control, their_control = socket.socketpair()
        inherited = (slots, their_messages.fileno(), their_control.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "latebind.engine.process", *map(str, inherited)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
        )
        their_messages.close()
        their_control.close()
        client = cls(process, await asyncio.open_connection(sock=control, limit=CONTROL_BYTES))
        try:
            await client._begin(order, slots, messages)
        except BaseException:
            messages.close()
            await client.close()
            raise
        finally:
            os.close(slots)
        return client

    @property
    def process_id(self) -> int:
        """The number of the engine's process."""
        return self._process.pid

    def live(self) -> bool:
        """Whether the engine's process is there."""
        return self._alive

    def ready(self, model: str | None = None) -> bool:
        """Whether the engine serves, and `model` is among what it serves."""
        return self._alive and (model is None or model in self.models)

    async def infer(self, model: str, rows: Mapping[str, Rows], *, deadline: float) -> Answer:
        """Run rows `(N, *shape)` of every input as N requests due at `deadline` and return their outputs.

        Raises `Refused`, `Expired`, `Failed` or `Unavailable`; cancelling this call cancels its requests.
        """
        if not self._alive or self._messages is None:
            raise Unavailable("the engine has ended: restart the server")
        lane = self._lanes[model]
        wanted = len(next(iter(rows.values())))
        slots = lane.take(wanted)
        requests = tuple(next(self._numbers) for _ in range(wanted))
        for spec, place in zip(lane.spec.inputs, lane.rows.inputs, strict=True):
            place[list(slots)] = filled(rows[spec.name], spec)
        call = Call(lane, requests, slots, asyncio.get_running_loop().create_future())
        self._calls.update(dict.fromkeys(requests, call))
        self._messages.write(pack_arrived(lane.number, deadline, requests, slots, steps(lane.spec, rows)))
        try:
            return await call.done
        except asyncio.CancelledError:
            left = [request for request in requests if request not in call.ended]
            self._messages.write(b"".join(pack_cancelled(request) for request in left))
            raise

    async def metrics(self) -> Snapshot:
        """Return the engine's figures of this moment."""
        if not self._alive:
            raise Unavailable("the engine has ended: restart the server")
        async with self._control_lock:
            self._control_writer.write(b"\n")
            snapshot: Snapshot = msgspec.json.decode(await self._line())
            return snapshot

    async def adopt(self, model: str, version: str) -> None:
        """Have the engine use a version of a model's learned caches from its next batch on; raises `ConfigError`."""
        if not self._alive:
            raise Unavailable("the engine has ended: restart the server")
        async with self._control_lock:
            self._control_writer.write(msgspec.json.encode(Adopt(model, version)) + b"\n")
            adopted = msgspec.json.decode(await self._line(), type=Adopted)
        if adopted.error is not None:
            raise ConfigError(adopted.error)

    async def close(self, grace: float = STOP_SECONDS) -> None:
        """Wait up to `grace` seconds for what is in flight, then end the process."""
        pending = {call.done for call in self._calls.values()}
        if pending:
            await asyncio.wait(pending, timeout=grace)
        if self._messages is not None:
            self._messages.close()
        self._control_writer.close()
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the engine did not end within %g s: it is killed", STOP_SECONDS)
            self._process.kill()
            self._process.wait()

    def receive(self, ended: Ended) -> None:
        """Take in the end of one request; with the last of its call the call is answered and its slots are free."""
        call = self._calls.pop(ended.request)
        call.ended[ended.request] = ended
        if len(call.ended) < len(call.requests):
            return
        if not call.done.done():
            outcome = _worst(call)
            if outcome is Outcome.ANSWERED:
                call.done.set_result(_answer(call))
            else:
                call.done.set_exception(_error(call.lane.spec.name, outcome))
        call.lane.give_back(call.slots)

    def lose(self) -> None:
        """The engine has gone: everything in flight is answered so."""
        self._alive = False
        for call in set(self._calls.values()):
            if not call.done.done():
                call.done.set_exception(Unavailable("the engine ended while this request ran: send it again"))
        self._calls.clear()

    async def _begin(self, order: EngineOrder, slots: int, messages: socket.socket) -> None:
        """Send the order; with the answer map the slots and listen."""
        self._control_writer.write(msgspec.json.encode(order) + b"\n")
        started = msgspec.json.decode(await self._line(), type=EngineStarted)
        if started.error is not None:
            raise ConfigError(started.error)
        memory = SlotMemory(slots, started.models, order.engine.slots)
        self.models = {spec.name: spec for spec in started.models}
        self._lanes = {
            spec.name: Lane(number, spec, rows, order.engine.slots)
            for number, (spec, rows) in enumerate(zip(started.models, memory.models, strict=True))
        }
        loop = asyncio.get_running_loop()
        self._messages, _ = await loop.create_connection(lambda: EngineStream(self), sock=messages)
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
        """Hand over the requests that have ended."""
        for ended in self._reader.feed(data):
            self._client.receive(ended)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that the engine has gone."""
        del exc
        self._client.lose()


def _worst(call: Call) -> Outcome:
    """The outcome that speaks for the whole call: any that is not an answer."""
    return next((e.outcome for e in call.ended.values() if e.outcome is not Outcome.ANSWERED), Outcome.ANSWERED)


def _answer(call: Call) -> Answer:
    """Copy the outputs out of the slots."""
    slots = list(call.slots)
    ends = [call.ended[request] for request in call.requests]
    return Answer(
        outputs={
            spec.name: trimmed(rows[slots], spec)
            for spec, rows in zip(call.lane.spec.outputs, call.lane.rows.outputs, strict=True)
        },
        left_at=tuple(end.stage for end in ends),
        waited=tuple(end.waited for end in ends),
        ran=tuple(end.ran for end in ends),
    )


def _error(model: str, outcome: Outcome) -> LatebindError:
    match outcome:
        case Outcome.REFUSED_FULL:
            return Refused(f"the queue of {model} is full: try again later")
        case Outcome.REFUSED_LATE:
            return Refused(f"{model} has too much to do to answer by the deadline: allow more time or try again later")
        case Outcome.EXPIRED:
            return Expired(f"the deadline passed before {model} had the answer: allow more time")
        case _:
            return Failed(f"{model} raised while it ran this request: the server's log says why")
