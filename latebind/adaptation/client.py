"""The door's end of the adaptation service: starts it, tells it of answers, has the engine take what it makes."""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol, Self
from zlib import crc32

import msgspec
import numpy as np

from latebind.adaptation.controller import number_of
from latebind.adaptation.messages import (
    AdaptationOrder,
    Answered,
    FromService,
    Started,
    Status,
    Unusable,
    UseVersion,
    pack_answered,
    pack_unusable,
)
from latebind.adaptation.sampling import Sampler
from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import ModelSpec
from latebind.forks.client import Forked, ForkServer
from latebind.server.gateway import AdaptationFigures, Answer, Array

logger = logging.getLogger(__name__)

PROCESS, NAME = "latebind.adaptation.process", "latebind-adapt"  # its module, and what `top` calls it
STOP_SECONDS = 20.0
MOST_WAITING = 1 << 22  # bytes that the service has not read; above it nothing is sampled
GATHER_SECONDS = 0.01  # that answers are gathered before they are sent, so that the service wakes less often


class VersionsInUse(Protocol):
    """Which version of its learned caches each model is to use, and which it uses; `engine.engines` has them."""

    async def adopt(self, model: str, version: str) -> None:
        """Have a version used from now on. Raises `ConfigError` if it cannot be, `Unavailable` without such a model."""
        ...

    def wanted(self, model: str) -> str:
        """Return the version that is to be used; empty if nobody has chosen one yet."""
        ...

    def used(self, model: str) -> str:
        """Return the version that the engine reported last."""
        ...


class NothingToFollow(ConfigError):
    """No model that is served has learned caches that can be adapted."""


class AdaptationClient:
    """Watches what the door answers. Make one with `start`, end it with `close`."""

    def __init__(self, models: Sequence[ModelSpec], share: float, process: Forked, in_use: VersionsInUse) -> None:
        self.statuses: dict[str, Status] = {}
        self.dropped = 0  # samples for which there was no room
        self._models = {
            spec.name: (number, spec, Sampler(share, Random(number).random)) for number, spec in enumerate(models)
        }
        self._process = process
        self._in_use = in_use
        self._gathered: list[bytes] = []
        self._messages: asyncio.StreamWriter | None = None
        self._control: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, order: AdaptationOrder, models: Sequence[ModelSpec], in_use: VersionsInUse, forks: ForkServer
    ) -> Self:
        """Start the service for `models`, in the order of the directories.

        Those that it cannot follow are served as they were built; raises `NothingToFollow` where that is all of them,
        `ConfigError` if it cannot start.
        """
        messages, their_messages = socket.socketpair()
        control, their_control = socket.socketpair()
        with their_messages, their_control:
            inherited = (their_messages.fileno(), their_control.fileno())
            process = await forks.forked(PROCESS, [], name=NAME, inherited=inherited)
        client = cls(models, order.config.sample, process, in_use)
        wanted = {path: in_use.wanted(spec.name) for path, spec in zip(order.directories, models, strict=False)}
        reader, client._control = await asyncio.open_connection(sock=control)
        client._control.write(msgspec.json.encode(msgspec.structs.replace(order, wanted=wanted)) + b"\n")
        _, client._messages = await asyncio.open_connection(sock=messages)
        try:
            started = await _next(reader)
            if not isinstance(started, Started) or started.error:
                reason = started.error if isinstance(started, Started) else "the adaptation service did not start"
                raise ConfigError(reason)
            if len(started.left_out) == len(order.directories):
                raise NothingToFollow("; ".join(started.left_out.values()))
            client._leave_out(started.left_out)
        except BaseException:
            await client.close()
            raise
        client._listening = asyncio.create_task(client._listen(reader))
        return client

    def _leave_out(self, why: Mapping[int, str]) -> None:
        """Count the models on that the service follows, as it does."""
        followed = []
        for number, spec, sampler in self._models.values():
            if number in why:
                logger.warning("%s keeps the learned caches that it was built with: %s", spec.name, why[number])
            else:
                followed.append((spec, sampler))
        self._models = {spec.name: (number, spec, sampler) for number, (spec, sampler) in enumerate(followed)}

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer, client: str) -> None:
        """Tell of the N rows of one call; some of them go along as samples. Never waits."""
        known = self._models.get(spec.name)
        if known is None or self._messages is None or self._messages.is_closing():
            return
        number, spec, sampler = known
        (output,) = answer.outputs.values()
        room = self._messages.transport.get_write_buffer_size() < MOST_WAITING
        for place, (row, left_at, version) in enumerate(zip(output, answer.left_at, answer.caches, strict=True)):
            early = left_at + 1 < spec.stages
            draw, data, end = sampler.draw(early), b"", b""
            if draw is not None and room:
                data = b"".join(rows[tensor.name][place].tobytes() for tensor in spec.inputs)
                end = b"" if early else np.ascontiguousarray(row).tobytes()
            elif draw is not None:
                self.dropped += 1
            told = Answered(number, int(row.argmax()), crc32(client.encode()), version, draw, data, end)
            self._tell(pack_answered(told))

    def unusable(self, model: str, version: str) -> None:
        """Tell that the engine cannot use a version that it was to use."""
        if model in self._models:
            self._tell(pack_unusable(Unusable(self._models[model][0], number_of(version))))

    def _tell(self, message: bytes) -> None:
        if not self._gathered:  # the first since they were last sent
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._send)
        self._gathered.append(message)

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return what the service last told, by model."""
        return {
            name: AdaptationFigures(
                version=self._in_use.used(name),
                sampled=told.sampled,
                retrained=told.retrained,
                refused=told.refused,
                alarms=told.alarms,
                fidelity=told.fidelity,
                lower=told.lower,
                upper=told.upper,
                target=told.target,
            )
            for name, told in self.statuses.items()
        }

    def when_ended(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once the service has ended, whyever."""
        if self._listening is not None:
            self._listening.add_done_callback(lambda _: tell())

    async def close(self) -> None:
        """Have the service save what it saw, and end it."""
        if self._messages is not None:
            self._send()
            self._messages.close()
        if self._listening is not None:
            await asyncio.wait({self._listening}, timeout=STOP_SECONDS)
            self._listening.cancel()
        if self._control is not None:
            self._control.close()  # uvloop closes the descriptor of what is garbage twice: somebody else's by then
        if not await asyncio.to_thread(self._process.end, STOP_SECONDS):
            logger.error("the adaptation service did not end within %g s: it was killed", STOP_SECONDS)

    def _send(self) -> None:
        if self._messages is not None and not self._messages.is_closing():
            self._messages.write(b"".join(self._gathered))
        self._gathered.clear()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Carry out what the service wants until it ends; without it, serving goes on as it is."""
        while (message := await _next(reader)) is not None:
            if isinstance(message, Status):
                self.statuses[message.model] = message
            elif isinstance(message, UseVersion):
                await self._use(message)

    async def _use(self, message: UseVersion) -> None:
        try:
            await self._in_use.adopt(message.model, message.version)
        except ConfigError as error:
            logger.error("%s cannot take version %s: %s", message.model, message.version, error)
            self.unusable(message.model, message.version)
            return
        except LatebindError as error:
            logger.warning("%s: version %s is not used: %s", message.model, message.version, error)
            return
        logger.info("%s: learned caches %s (%s)", message.model, message.version, message.reason)


async def _next(reader: asyncio.StreamReader) -> FromService | None:
    line = await reader.readline()
    return msgspec.json.decode(line, type=FromService) if line else None
