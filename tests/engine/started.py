"""An engine that several tests ask, one after another, for to start one takes seconds; and one that does not start."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from latebind.domain.errors import ConfigError
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from tests.forked import FORKS

SECONDS = 200.0  # that a test may take


@dataclass(frozen=True)
class Started:
    """The client, and the event loop that it belongs to, which runs while a test does."""

    client: EngineClient
    _runner: asyncio.Runner

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._runner.run(asyncio.wait_for(test, SECONDS))


@contextmanager
def started(order: EngineOrder) -> Iterator[Started]:
    """Have an engine run for as long as the block lasts."""
    with asyncio.Runner() as runner:
        client = runner.run(EngineClient.start(order, FORKS))
        try:
            yield Started(client, runner)
        finally:
            runner.run(client.close())


def check_refused(order: EngineOrder, says: str) -> None:
    """See that no engine starts by this order, and that the reason is told."""
    with pytest.raises(ConfigError, match=says):
        asyncio.run(asyncio.wait_for(EngineClient.start(order, FORKS), SECONDS))


async def until_slots_are_free(client: EngineClient, *, seconds: float = 60.0) -> None:
    """Return when every slot is free: a call that wants all slots of a model waits until nobody has any.

    Raises `Refused` if that takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    for name, claims in client._claims.items():
        (await client.claim(name, len(claims), deadline=deadline)).release()
    assert all(claims.free == len(claims) for claims in client._claims.values())


def loss_of(client: EngineClient) -> asyncio.Event:
    """Return an event that is set as soon as the frontend has heard that this engine's process has gone."""
    heard, told = asyncio.Event(), client.on_lost

    def tell() -> None:
        heard.set()
        if told is not None:
            told()

    client.on_lost = tell
    return heard
