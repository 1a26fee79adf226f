"""Clients of a live engine that ask for several models, and count the answers when saturated."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle

from latebind.bench.client import Array
from latebind.engine.client import EngineClient
from research.live.requests import PATIENCE, Sent, ask, in_time


class Clients:
    """All that ask one engine. `rows` are those of each model, sent in turn."""

    def __init__(self, engine: EngineClient, rows: Mapping[str, Sequence[Mapping[str, Array]]]) -> None:
        self._engine = engine
        self._rows = {model: cycle(some) for model, some in rows.items()}

    async def play(self, calls: Sequence[tuple[float, str]], allowed: float = PATIENCE) -> list[Sent]:
        """Send requests for models at these times (seconds from now); returns when all have ended, in their order."""
        return await in_time([(at, partial(self._ask, model, allowed)) for at, model in calls])

    async def saturate(self, model: str, seconds: float, waiting: int) -> float:
        """Return the answers a second while this many requests are always under way."""
        begun, answers = time.monotonic(), 0

        async def go_on() -> None:
            nonlocal answers
            while time.monotonic() < begun + seconds:
                await self._ask(model, PATIENCE)
                answers += 1

        await asyncio.gather(*(go_on() for _ in range(waiting)))
        return answers / (time.monotonic() - begun)

    async def _ask(self, model: str, allowed: float) -> Sent:
        sent, _ = await ask(self._engine, model, next(self._rows[model]), allowed)
        return sent
