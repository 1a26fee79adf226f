"""What is left of an engine that has gone: nothing, without a collection, for those of a serving process are rare."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from latebind.domain.config import EngineConfig
from latebind.domain.errors import Unavailable
from latebind.engine.engines import Engines
from tests.engine.test_engines import ask, is_stopped, kill, serving

TIMES = 4
CALLS = 3
SLOTS = EngineConfig().slots


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Have what only the collector would find stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> list[str]:
    """Return what this process has open, by its kind."""
    found = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sorted(str(one.readlink()).split("[")[0] for one in found if one.is_symlink())


async def settled(engines: Engines) -> list[str]:
    """Return the descriptors once the engine before has ended."""
    while engines._tasks:
        await asyncio.wait(engines._tasks)
    await asyncio.sleep(0)  # transports close their sockets one turn of the loop after they are told to
    return descriptors()


async def calls_it_has(engines: Engines) -> None:
    """Kill the engine while it has calls, which are answered by that."""
    await _kill_under(engines, CALLS)


async def calls_wait(engines: Engines) -> None:
    """Kill it while calls wait for the places of others."""
    await _kill_under(engines, SLOTS + CALLS)


async def reload(engines: Engines) -> None:
    """Have another engine take over that serves the same."""
    await engines.change(engines.serving, tried=())


@pytest.mark.parametrize("end", [kill, calls_it_has, calls_wait, reload])
async def test_descriptors_of_an_engine_go_with_it(
    scale_shop: Path, end: Callable[[Engines], Coroutine[None, None, None]]
) -> None:
    async with serving(scale_shop, crashes=1000) as (engines, _):
        assert await ask(engines) == 2.0
        await engines.metrics()
        before = await settled(engines)
        for _ in range(TIMES):
            await end(engines)
            assert await ask(engines) == 2.0
            assert await settled(engines) == before


async def _kill_under(engines: Engines, count: int) -> None:
    engine = engines._engine
    assert engine is not None
    os.kill(engine.process_id, signal.SIGSTOP)
    while not is_stopped(engine.process_id):
        pass
    calls = [asyncio.create_task(ask(engines)) for _ in range(count)]
    while len(engine.sent) < min(count, SLOTS):
        await asyncio.sleep(0)
    await kill(engines)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(end) for end in ends} == {Unavailable}
