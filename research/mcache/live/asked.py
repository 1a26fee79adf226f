"""An engine with many models under test: requests at given times, or clients that wait for their answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from random import Random

from latebind.domain.config import ResidencyConfig
from latebind.domain.errors import LatebindError
from latebind.engine.client import EngineClient
from latebind.server.gateway import MemoryMetrics
from latebind.simulation.traces import Request
from research.live.requests import in_time
from research.mcache.live.sides import Setting, order
from research.mcache.live.watched import Taken, Watch, taken
from research.mcache.live.zoo import Zoo, made_up

PATIENCE = 600.0  # seconds that any call may take
SETTLES = 0.3  # seconds until what an engine takes with nothing loaded is looked at


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when it was to be sent and when it was answered (seconds since the start), and how long it waited.

    `waited` is until its batch began. A request that was not answered ended at inf.
    """

    model: str
    sent: float
    ended: float
    waited: float

    @property
    def seconds(self) -> float:
        """From sending to answer."""
        return self.ended - self.sent


class Asked:
    """A running engine; `base` is the memory of its process with nothing loaded, `budget` what models may take."""

    def __init__(self, engine: EngineClient, zoo: Zoo, budget: int, base: Taken, seed: int) -> None:
        self.zoo = zoo
        self.budget = budget
        self._engine = engine
        self._base = base
        self._rows = {name: made_up(zoo.models[name].spec, Random(seed)) for name in engine.models}
        self._next = 0

    def watch(self) -> Watch:
        """Return a watch over the memory of the engine's process."""
        return Watch(self._engine.process_id, self._base, budget=self.budget, folder=self.zoo.folder)

    async def memory(self) -> dict[str, MemoryMetrics]:
        """Return the engine's own figures of its models' memory."""
        return (await self._engine.metrics())["memory"]["models"]

    async def call(self, model: str, begun: float, sent: float) -> Call:
        """Send one request; `sent` is when it should have been, in seconds since `begun`."""
        self._next += 1
        rows = self._rows[model][self._next % len(self._rows[model])]
        try:
            answer = await self._engine.infer(model, rows, deadline=time.monotonic() + PATIENCE)
        except LatebindError:
            return Call(model, sent, inf, nan)
        return Call(model, sent, time.perf_counter() - begun, answer.waited[0])

    async def once(self, model: str) -> Call:
        """Send one request and wait for its answer."""
        return await self.call(model, time.perf_counter(), 0.0)

    async def play(self, requests: Sequence[Request]) -> list[Call]:
        """Send requests at their times, without waiting for answers; return when all have ended."""
        begun = time.perf_counter()
        return await in_time([(one.time, partial(self.call, one.model, begun, one.time)) for one in requests])

    async def crowd(self, clients: Sequence[Iterator[str]], seconds: float) -> list[Call]:
        """Let each client send its next request as soon as it has its answer, for this many seconds."""
        begun, found = time.perf_counter(), list[Call]()

        async def client(models: Iterator[str]) -> None:
            while (now := time.perf_counter() - begun) < seconds:
                found.append(await self.call(next(models), begun, now))

        await asyncio.gather(*map(client, clients))
        return found


@asynccontextmanager
async def asked(zoo: Zoo, side: ResidencyConfig, *, budget: int, setting: Setting, seed: int) -> AsyncIterator[Asked]:
    """Start an engine with all models in `budget` bytes beside slots and batches; nothing is in the page cache."""
    zoo.drop_cached()
    engine = await EngineClient.start(order(zoo, list(zoo.models), side, budget, setting))
    try:
        await asyncio.sleep(SETTLES)
        yield Asked(engine, zoo, budget, taken(engine.process_id), seed)
    finally:
        await engine.close()
