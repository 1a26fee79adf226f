"""Engines that stand still: calls are answered at their deadline all the same, it is told, and another takes over."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig
from latebind.domain.errors import Expired, Unavailable
from latebind.domain.eventlog import read_log
from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.engine.shared import WORKERS, Running, create_file
from latebind.forks.client import Forked
from latebind.queries.scheduler import replayed
from latebind.repository.listing import Selection
from tests.engine.started import until_slots_are_free
from tests.engine.test_engines import ask, is_stopped, kill
from tests.forked import FORKS

LONG = 600.0


@asynccontextmanager
async def standing(shop: Path, *, patience: float = LONG) -> AsyncIterator[Engines]:
    """Have an engine whose process is stopped; it goes on at the end of the block."""
    config = GenerationsConfig(patience=patience)
    order = EngineOrder((), EngineConfig(), PolicyConfig())
    engines = await Engines.start(order, Selection(shop).first(), FORKS, config)
    process = engines.process_id
    try:
        assert await ask(engines) == 2.0
        await engines.metrics()
        await engines.picture()
        os.kill(process, signal.SIGSTOP)
        while not is_stopped(process):  # a run may end before each of its threads hears of it
            pass
        yield engines
    finally:
        if engines.process_id == process:
            os.kill(process, signal.SIGCONT)
        await engines.close()


async def until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(60.0):
        while not found():
            await asyncio.sleep(0.01)


async def test_a_call_is_answered_at_its_deadline_though_the_engine_stands_still(scale_shop: Path) -> None:
    async with standing(scale_shop) as engines:
        with pytest.raises(Expired, match="by the deadline"):
            await asyncio.wait_for(ask(engines, seconds=0.05), 30.0)
        deadline = time.monotonic() + 0.05
        claim = await engines.claim("scale", 1, deadline=deadline)
        with pytest.raises(Expired):
            async with asyncio.timeout(30.0):
                await anext(claim.stream(deadline=deadline))
        claim.release()


async def test_the_slot_of_a_call_that_has_its_answer_is_the_engine_s_until_that_goes_on(scale_shop: Path) -> None:
    async with standing(scale_shop) as engines:
        engine = engines._engine
        assert engine is not None
        with pytest.raises(Expired):
            await ask(engines, seconds=0.05)
        claims = engine._claims["scale"]
        assert claims.free == len(claims) - 1
        os.kill(engines.process_id, signal.SIGCONT)
        await until_slots_are_free(engine, seconds=60.0)
        assert not engine.sent
        assert await ask(engines) == 2.0


async def test_figures_and_picture_are_what_the_engine_told_last_and_how_long_ago(scale_shop: Path) -> None:
    async with standing(scale_shop) as engines:
        async with asyncio.timeout(30.0):
            figures, picture = await engines.metrics(), await engines.picture()
            assert not await engines.traces()
            assert (await engines.metrics())["age"] > figures["age"] > 0.0
        assert figures["models"]["scale"]["requests"]["answered"] == 1
        assert picture.age > 0.0
        assert picture.models.keys() == {"scale"}
        os.kill(engines.process_id, signal.SIGCONT)
        engine = engines._engine
        assert engine is not None
        await until(lambda: not engine.owes_answer)
        assert "age" not in await engines.metrics()


async def test_who_stands_still_is_not_ready_until_it_goes_on(
    scale_shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with standing(scale_shop) as engines:
            process, engine = engines.process_id, engines._engine
            assert engine is not None
            await until(lambda: engine.late)
            assert not engines.ready("scale")
            assert engines.live()
            os.kill(process, signal.SIGCONT)
            await until(lambda: not engine.late)
            await until(lambda: engines.ready("scale"))
            assert engines.process_id == process
    assert "the engine stands still: nobody has listened for" in caplog.text
    assert "the engine goes on" in caplog.text


async def test_who_stands_still_for_too_long_is_replaced(scale_shop: Path) -> None:
    async with standing(scale_shop, patience=0.1) as engines:
        process = engines.process_id
        with pytest.raises(Unavailable, match="send it again"):
            await ask(engines)
        assert await ask(engines) == 2.0
        assert engines.process_id != process
        assert (await engines.metrics())["restarts"] == 1


async def test_what_engines_decided_that_stood_still_and_were_killed_replays_alike_every_time(
    scale_shop: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events"
    order = EngineOrder((), EngineConfig(), PolicyConfig(), event_log=str(log))
    engines = await Engines.start(order, Selection(scale_shop).first(), FORKS)
    try:
        for _ in range(2):
            await asyncio.gather(*[ask(engines) for _ in range(100)])
            os.kill(engines.process_id, signal.SIGSTOP)
            await until(lambda: is_stopped(engines.process_id))
            with pytest.raises(Expired):
                await ask(engines, seconds=0.05)
            os.kill(engines.process_id, signal.SIGCONT)
            await asyncio.gather(*[ask(engines) for _ in range(20)])
            await kill(engines)
        assert await ask(engines) == 2.0
    finally:
        await engines.close()
    files = sorted(tmp_path.glob("events*"))
    assert len(files) == 3
    for file in files:
        found = set()
        for _ in range(6):
            with file.open("rb") as opened:
                found.add(replayed(*read_log(opened)))
        ((events, actions, differs),) = found
        assert not differs
        assert min(events, actions) > 0


@dataclass
class Process:
    """The process of an engine, as far as its client ends it."""

    pid: int = 0
    killed: int = 0

    def kill(self) -> None:
        self.killed += 1

    def abort(self) -> None:
        """Its end of the stream closes with it."""


@contextmanager
def at_the_frontend() -> Iterator[tuple[EngineClient, Running]]:
    """Yield a client whose engine, with two workers, has no process: the test writes what that would do."""
    control = asyncio.StreamReader(), cast(asyncio.StreamWriter, None)  # nobody is asked
    client = EngineClient(cast(Forked, Process()), control, [create_file(), create_file()])
    client._messages = cast(asyncio.Transport, client._process)
    try:
        yield client, Running(2, client._places)
    finally:
        for file in client._files:
            os.close(file)


async def test_only_those_are_to_blame_for_an_engine_that_stood_still_that_were_late() -> None:
    with at_the_frontend() as (client, running):
        running.begin(WORKERS, 1, 0, LONG)
        running.begin(WORKERS + 1, 2, 0, -1.0)
        assert client.ran() == (0, 1)
        client.look()
        client.look(patience=0.0)
        assert client.ran() == (1,)
        assert cast(Process, client._process).killed == 1
