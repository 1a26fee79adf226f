"""The frontend's end of the adaptation service: starts it, sends it answers, passes its versions to the engine.

`Following` keeps a service running: another is started when one dies, or when other models are served.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Self, cast

import msgspec
import numpy as np

from latebind.adaptation.controller import number_of
from latebind.adaptation.messages import (
    LENGTH,
    AdaptationOrder,
    Answered,
    FromService,
    Sampler,
    Started,
    Status,
    ToService,
    Unusable,
    UseVersion,
    encoded,
    from_service,
)
from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import ModelSpec
from latebind.engine.engines import Engines
from latebind.forks.client import Forked, ForkServer
from latebind.program.device import check_adaptation
from latebind.repository.listing import Fingerprint
from latebind.server.gateway import AdaptationFigures, Answer, Array

logger = logging.getLogger(__name__)

PROCESS, NAME = "latebind.adaptation.process", "latebind-adapt"  # its module, and its name in `top`
PATIENCE = 10.0  # seconds that serving waits for the service
STOP_SECONDS = 20.0
MOST_WAITING = 1 << 22  # bytes that the service has not read; above it nothing is sampled
GATHER_SECONDS = 0.01  # for which answers are gathered before they are sent, so that the service wakes less often
NOT_YET = "no adaptation service has started yet: fidelity is not watched"
PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds until a service that has died is replaced: twice as many each time


class NothingToFollow(ConfigError):
    """No served model has learned caches that can be adapted."""


class AdaptationClient:
    """Watches what the frontend answers. Make one with `start`, end it with `close`."""

    def __init__(self, models: Sequence[ModelSpec], share: float, process: Forked, in_use: Engines) -> None:
        self.statuses: dict[str, Status] = {}
        self.ended: asyncio.Task[None] | None = None  # done once the service has ended, for whatever reason
        self._models = {
            spec.name: (number, spec, Sampler(share, Random(number).random), False)
            for number, spec in enumerate(models)
        }
        self._process = process
        self._in_use = in_use
        self._gathered: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(
        cls, order: AdaptationOrder, models: Sequence[ModelSpec], in_use: Engines, forks: ForkServer
    ) -> Self:
        """Start the service for `models`, in the order of the directories.

        Those that it cannot follow are served as built; raises `NothingToFollow` if it can follow none, `ConfigError`
        if it cannot start.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await forks.forked(PROCESS, [], name=NAME, inherited=(theirs.fileno(),), imports=(PROCESS,))
        client = cls(models, order.config.sample, process, in_use)
        wanted = {path: in_use.wanted(spec.name) for path, spec in zip(order.directories, models, strict=False)}
        reader, client._writer = await asyncio.open_connection(sock=ours)
        client._gather(msgspec.structs.replace(order, wanted=wanted))
        try:
            started = await _next(reader)
            if not isinstance(started, Started):
                raise ConfigError("the adaptation service did not start")
            if len(started.left_out) == len(order.directories):
                raise NothingToFollow("; ".join(started.left_out.values()))
            client._follow(started)
        except BaseException:
            await client.close()
            raise
        client.ended = asyncio.create_task(client._listen(reader))
        return client

    def _follow(self, started: Started) -> None:
        """Number the models that the service follows, as it does."""
        followed = []
        for number, spec, sampler, _ in self._models.values():
            if (why := started.left_out.get(number)) is not None:
                logger.warning("%s keeps the learned caches that it was built with: %s", spec.name, why)
            else:
                followed.append((spec, sampler))
        self._models = {
            spec.name: (number, spec, sampler, coarse)
            for number, ((spec, sampler), coarse) in enumerate(zip(followed, started.coarse, strict=True))
        }

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer) -> None:
        """Report the N rows of one call; some of them are sent along as samples. Never waits."""
        known = self._models.get(spec.name)
        if known is None or self._writer is None or self._writer.is_closing():
            return
        number, spec, sampler, coarse = known
        (output,) = answer.outputs.values()
        room = self._writer.transport.get_write_buffer_size() < MOST_WAITING
        entries = zip(output, answer.left_at, answer.caches, answer.promised, strict=True)
        for place, (row, left_at, version, promised) in enumerate(entries):
            again = coarse or left_at + 1 < spec.stages
            draw, data, end = sampler.draw(again) if room else None, b"", b""
            sizes: tuple[int, ...] = ()
            if draw is not None:
                sizes = _sizes(spec, {tensor.name: rows[tensor.name][place].shape for tensor in spec.inputs})
                data = b"".join(rows[tensor.name][place].tobytes() for tensor in spec.inputs)
                end = b"" if again else np.ascontiguousarray(row).tobytes()
            self._gather(Answered(number, int(row.argmax()), version, draw, data, end, sizes, promised))

    def unusable(self, model: str, version: str) -> None:
        """Report that the engine cannot use a version that it should use."""
        if model in self._models:
            self._gather(Unusable(self._models[model][0], number_of(version)))

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return the service's last report, by model."""
        found = {}
        for name, status in self.statuses.items():
            figures = {**msgspec.to_builtins(status), "version": self._in_use.used(name)}
            del figures["model"]
            found[name] = cast(AdaptationFigures, figures)
        return found

    async def close(self) -> None:
        """End the service; it may be killed at any moment."""
        if self.ended is not None:
            self.ended.cancel()
            await asyncio.wait({self.ended})
        if self._writer is not None:
            self._writer.close()  # uvloop closes a garbage object's descriptor twice, and it may be reused by then
        self._process.kill()
        await asyncio.to_thread(self._process.end, STOP_SECONDS)

    def _gather(self, message: ToService) -> None:
        if not self._gathered:  # the first since they were last sent
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._send)
        body = encoded(message)
        self._gathered += (LENGTH.pack(len(body)), body)

    def _send(self) -> None:
        if self._writer is not None and not self._writer.is_closing() and self._gathered:
            self._writer.write(b"".join(self._gathered))
        self._gathered.clear()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Carry out what the service asks for until it ends; serving goes on without it."""
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
        except LatebindError as error:
            logger.warning("%s: version %s is not used: %s", message.model, message.version, error)
        else:
            logger.info("%s: learned caches %s (%s)", message.model, message.version, message.reason)


def _sizes(spec: ModelSpec, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Return the sizes of the model's named dimensions in a row with inputs of these shapes."""
    found = spec.dims_of(shapes) if spec.dims else {}
    return tuple([found[dim.name] for dim in spec.dims])


async def _next(reader: asyncio.StreamReader) -> FromService | None:
    """Return the next message, None once the service has closed its end."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return from_service(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None


@dataclass(frozen=True, slots=True)
class Followed:
    """Models that have learned caches, in the order of the directories, and a key that changes when they do."""

    order: AdaptationOrder
    models: tuple[ModelSpec, ...]
    prints: tuple[Fingerprint | None, ...]


class Following:
    """An observer that outlives its service. `find` returns what is to be followed now, None for nothing.

    Call `begin` first, `look` when the served models may have changed, and `close` at the end.
    """

    def __init__(self, find: Callable[[], Followed | None], in_use: Engines, forks: ForkServer) -> None:
        self._find, self._in_use, self._forks = find, in_use, forks
        self._followed: Followed | None = None
        self._client: AdaptationClient | None = None
        self._unwatched = ""
        self._changed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer) -> None:
        """Report the rows of one call to the service, if one is running."""
        if self._client is not None:
            self._client.answered(spec, rows, answer)

    def unusable(self, model: str, version: str) -> None:
        """Report to the service that the engine cannot use a version; a later service finds out by itself."""
        if self._client is not None:
            self._client.unusable(model, version)

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return the service's last report, by model."""
        return {} if self._client is None else self._client.figures()

    def unwatched(self) -> str:
        """Return why the models are not watched; "" if a service watches them."""
        return self._unwatched

    async def begin(self, patience: float) -> None:
        """Start following, and wait until the service has started, but not longer than `patience` seconds.

        It runs only when a core is idle, so on a busy machine it may take minutes to start. Raises `ConfigError` if it
        is known by then that it does not start.
        """
        first = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(first))
        await asyncio.wait({first}, timeout=patience)
        if first.done():
            first.result()
        else:
            first.cancel()
            logger.warning("learned caches are not followed yet: no core is idle for the adaptation service to start")

    def look(self) -> None:
        """Check whether the models have changed; if so, nothing is sent until a service knows them."""
        if self._find() != self._followed:
            self._client = None
            self._changed.set()

    async def close(self) -> None:
        """End the service."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    async def _keep(self, first: asyncio.Future[None]) -> None:
        """Keep a service running that follows what is served; `first` gets the result of the first try."""
        pause = PAUSE
        while True:
            self._changed.clear()
            self._followed, begun = self._find(), time.monotonic()
            if not self._unwatched and self._followed is not None:
                self._unwatched = NOT_YET
            try:
                why = await self._follow(self._followed, first)
            except (LatebindError, OSError) as error:
                if not first.done():
                    first.set_exception(error)
                    return
                why = f"no adaptation service can be started yet: {error}"
            if why:
                self._unwatched = why
                pause = PAUSE if time.monotonic() - begun > LONGEST_PAUSE else min(2.0 * pause, LONGEST_PAUSE)
                logger.error("%s", why)
                await asyncio.sleep(pause)

    async def _follow(self, followed: Followed | None, first: asyncio.Future[None]) -> str:
        """Follow these models until others are served, and return ""; or until the service dies, and return that."""
        client, ended = None, set[asyncio.Task[None]]()
        try:
            if followed is not None:
                client = await AdaptationClient.start(followed.order, followed.models, self._in_use, self._forks)
                ended = {client.ended} if client.ended else ended
        except NothingToFollow as error:
            logger.warning("nothing to adapt: %s", error)
        if not first.done():
            first.set_result(None)
        try:
            self._client = client if self._find() == followed else None
            self._unwatched = ""
            while self._find() == followed:
                changed = asyncio.create_task(self._changed.wait())
                try:
                    done, _ = await asyncio.wait({changed, *ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if done & ended:
                    return "the adaptation service has died: fidelity is not watched until another one has started"
                self._changed.clear()
            return ""
        finally:
            self._client = None
            if client is not None:
                await client.close()


async def start_beside(engines: Engines, settings: ServeConfig, forks: ForkServer) -> Following | None:
    """Start the service for these engines, if it is wanted; it follows what they serve. Close it at the end."""
    if not settings.adaptation.on:
        return None
    check_adaptation(settings.adaptation)
    following = Following(partial(_followed, settings, engines), engines, forks)
    if _followed(settings, engines) is None:
        logger.warning("nothing to adapt: no model that is served has learned caches in use")
    await following.begin(PATIENCE)
    engines.on_change, engines.on_failed = following.look, following.unusable
    return following


def _followed(settings: ServeConfig, engines: Engines) -> Followed | None:
    """Return what there is to adapt: the models that have learned caches in use."""
    adapted = tuple(spec for spec in engines.models.values() if spec.lookups)
    if not settings.engine.exits or not adapted:
        return None
    order = AdaptationOrder(
        directories=tuple(str(engines.serving.models[spec.name]) for spec in adapted),
        config=settings.adaptation,
        threads=settings.engine.threads,
        backend=settings.engine.backend,
        cores=settings.engine.cores,
        log_format=settings.observability.log_format,
        floor=settings.engine.floor,
    )
    return Followed(order, adapted, tuple(engines.serving.fingerprint_of(spec.name) for spec in adapted))
