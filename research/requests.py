"""Requests to a live engine: when each was sent, and when its client heard that it had ended."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf
from typing import Any, TypeVar

from latebind.bench.client import Array
from latebind.domain.errors import Expired, Refused
from latebind.engine.client import EngineClient
from latebind.sequence.padding import steps
from latebind.server.gateway import Answer

T = TypeVar("T")

PATIENCE = 120.0  # seconds that any call may take


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: when it was sent and when its client heard of its end (`time.monotonic()` seconds).

    `allowed` are the seconds that it was given; `left_at` is the last stage that it ran, -1 where it was not answered.
    `inputs` and `outputs` are the steps of a sequence's input and of its answer.
    """

    model: str
    sent: float
    ended: float
    allowed: float
    left_at: int
    inputs: int = 1
    outputs: int = 1

    @property
    def seconds(self) -> float:
        """From sending to answer, inf where there was none."""
        return self.ended - self.sent if self.left_at >= 0 else inf


@dataclass(frozen=True, slots=True)
class Visit:
    """What clients saw: `blocks` that are to be simulated, and calibrations at rising rates around each of them."""

    calibrations: Sequence[Sequence[Sent]]
    blocks: Sequence[Sequence[Sent]]

    @property
    def stretches(self) -> list[Sequence[Sent]]:
        """Calibrations and blocks in their order."""
        turns = zip_longest(self.calibrations, self.blocks, fillvalue=())
        return [stretch for turn in turns for stretch in turn if stretch]

    @property
    def sent(self) -> list[Sent]:
        """All requests in their order."""
        return [one for stretch in self.stretches for one in stretch]


async def ask(
    engine: EngineClient, model: str, rows: Mapping[str, Array], allowed: float = PATIENCE
) -> tuple[Sent, Answer | None]:
    """Send one request and wait for its end; returns what became of it, and its answer if there is one."""
    sent = time.monotonic()
    try:
        answer = await engine.infer(model, rows, deadline=sent + allowed)
    except (Refused, Expired):
        return Sent(model, sent, time.monotonic(), allowed, -1), None
    ended, spec = time.monotonic(), engine.models[model]
    (inputs,) = steps(spec, rows) or (1,)
    outputs = len(answer.outputs[spec.outputs[0].name][0]) if spec.kinds else 1
    return Sent(model, sent, ended, allowed, answer.left_at[0], inputs, outputs), answer


async def in_time(calls: Sequence[tuple[float, Callable[[], Coroutine[Any, Any, T]]]]) -> list[T]:
    """Make each call at its time (seconds from now); returns what they return, in their order, when all have ended."""
    begun, tasks = time.monotonic(), []
    for at, call in calls:
        await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
        tasks.append(asyncio.create_task(call()))
    return await asyncio.gather(*tasks)
