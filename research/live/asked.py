"""An engine under test: saturated, or with requests at given times, with or without a deadline."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

import numpy as np

from latebind.domain.errors import Expired, Refused
from latebind.engine.client import EngineClient
from research.live.played import Played
from research.live.requests import PATIENCE, Sent, ask, in_time
from research.live.rows import Rows

WAITING = 3  # batches' worth of rows under way while throughput is measured

Call = tuple[float, bool, bool]  # as in `Played`


@dataclass(slots=True)
class Asked:
    """One engine and the rows that it is asked for."""

    engine: EngineClient
    rows: Rows

    async def saturate(self, requests: int, waiting: int) -> float:
        """Return the seconds per request, over `requests`, while `waiting` of them are always under way.

        As many are asked for before and after: at the beginning all are at the same step, at the end batches empty.
        """
        left = iter(range(requests + 2 * waiting))
        ends: list[float] = []

        async def ask() -> None:
            for _ in left:
                await self._call(PATIENCE)
                ends.append(time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for _ in range(waiting):
                group.create_task(ask())
        return (ends[waiting + requests - 1] - ends[waiting - 1]) / requests

    async def throughput(self, requests: int, batch: int) -> float:
        """Return the seconds per request, over at least this many, while more than a batch is always waiting."""
        most = WAITING * batch
        return await self.saturate(most * ceil(requests / most), most)

    async def play(self, times: Sequence[float], *, allowed: float = PATIENCE) -> Played:
        """Send requests at these times, each to be answered within `allowed` seconds; returns when all have ended."""
        calls = await in_time([(at, partial(self._tried, allowed)) for at in times])
        seconds, early, alike = zip(*calls, strict=True)
        return Played(np.array(seconds), np.array(early), np.array(alike))

    async def send(self, times: Sequence[float]) -> list[Sent]:
        """Send requests at these times; returns when all have ended, with what their clients saw."""
        return await in_time([(at, self._sent) for at in times])

    async def _sent(self) -> Sent:
        row, rows = self.rows.take()
        sent, answer = await ask(self.engine, self.rows.spec.name, rows)
        if answer is not None:
            self.rows.alike(row, answer)
        return sent

    async def _tried(self, allowed: float) -> Call:
        try:
            return await self._call(allowed)
        except (Refused, Expired):
            return inf, False, False

    async def _call(self, allowed: float) -> Call:
        row, rows = self.rows.take()
        name = self.rows.spec.name
        answer = await self.engine.infer(name, rows, deadline=time.monotonic() + allowed)
        early = answer.left_at[0] < self.engine.models[name].stages - 1
        return answer.waited[0] + answer.ran[0], early, self.rows.alike(row, answer)
