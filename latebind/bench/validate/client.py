"""Clients of a live engine that note when they sent each request and when they had its answer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf
from random import Random

from latebind.bench.client import Array
from latebind.domain.errors import Expired, Refused
from latebind.engine.client import EngineClient

PATIENCE = 120.0  # seconds that any call may take


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: when it was sent and when its client heard of its end (`time.monotonic()` seconds).

    `allowed` are the seconds that it was given; `left_at` is the last stage that it ran, -1 where it was not answered.
    """

    model: str
    sent: float
    ended: float
    allowed: float
    left_at: int

    @property
    def seconds(self) -> float:
        """From sending to answer, inf where there was none."""
        return self.ended - self.sent if self.left_at >= 0 else inf


class Clients:
    """All that ask one engine. `rows` are those of each model, sent in turn."""

    def __init__(self, engine: EngineClient, rows: Mapping[str, Sequence[Mapping[str, Array]]]) -> None:
        self._engine = engine
        self._rows = {model: cycle(some) for model, some in rows.items()}

    async def play(self, calls: Sequence[tuple[float, str]], allowed: float = PATIENCE) -> list[Sent]:
        """Send requests for models at these times (seconds from now); returns when all have ended, in their order."""
        begun, tasks = time.monotonic(), []
        for at, model in calls:
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            tasks.append(asyncio.create_task(self._ask(model, allowed)))
        return await asyncio.gather(*tasks)

    async def saturate(self, model: str, seconds: float, waiting: int) -> float:
        """Return the answers a second while so many are always under way."""
        begun, answers = time.monotonic(), 0

        async def ask() -> None:
            nonlocal answers
            while time.monotonic() < begun + seconds:
                await self._ask(model, PATIENCE)
                answers += 1

        await asyncio.gather(*(ask() for _ in range(waiting)))
        return answers / (time.monotonic() - begun)

    async def _ask(self, model: str, allowed: float) -> Sent:
        rows, sent = next(self._rows[model]), time.monotonic()
        try:
            answer = await self._engine.infer(model, rows, deadline=sent + allowed)
        except (Refused, Expired):
            return Sent(model, sent, time.monotonic(), allowed, -1)
        return Sent(model, sent, time.monotonic(), allowed, answer.left_at[0])


def poisson(rate: float, seconds: float, random: Random) -> list[float]:
    """Return when requests come, the first at once, `rate` a second on average."""
    found, at = list[float](), 0.0
    while at < seconds:
        found.append(at)
        at += random.expovariate(rate)
    return found


def rising(low: float, high: float, seconds: float, random: Random) -> list[float]:
    """Return when requests come whose rate rises from one to the other."""
    first, *others = poisson(high, seconds, random)
    return [first, *(at for at in others if random.random() * high < low + (high - low) * at / seconds)]
