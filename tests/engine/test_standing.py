"""Engines with real processes that die, are replaced and stand still: every call ends, and nothing of them is left."""

import asyncio
import gc
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import cast

import psutil
import pytest

from latebind.domain.errors import Expired, LatebindError, Unavailable
from latebind.domain.eventlog import read_log
from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines
from latebind.engine.order import MOST_SLOTS
from latebind.engine.shared import WORKERS, Running
from latebind.engine.slots import create_file
from latebind.forks.client import Forked
from latebind.queries.scheduler import replayed
from tests.engine.started import ask, kill, serving, stop, until_slots_are_free
from tests.forked import FORKS

SLOTS = MOST_SLOTS
CALLS = 3


async def until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(60.0):
        while not found():
            await asyncio.sleep(0.01)


async def ask_on(engines: Engines, done: asyncio.Event) -> Counter[object]:
    """Ask again and again; return how often came which answer or error."""
    seen: Counter[object] = Counter()
    while not done.is_set():
        try:
            seen[await ask(engines)] += 1
        except LatebindError as error:
            seen[type(error)] += 1
            await asyncio.sleep(0.001)  # what is refused at once lets nobody else run
    return seen


async def test_callers_see_no_error_when_a_version_takes_over_and_one_each_at_most_when_an_engine_dies(
    scales: Path, scale_shop: Path
) -> None:
    async with serving(scale_shop) as (engines, catalogue):
        done = asyncio.Event()
        calls = [asyncio.create_task(ask_on(engines, done)) for _ in range(4)]
        copytree(scales / "later" / "scale" / "2", scale_shop / "scale" / "2")
        assert await catalogue.reload() == ["scale"]
        assert await ask(engines) == 3.0
        await until(lambda: not engines._ending)
        done.set()
        assert set(sum([await call for call in calls], Counter[object]())) == {2.0, 3.0}
        done.clear()
        calls = [asyncio.create_task(ask_on(engines, done)) for _ in range(4)]
        await asyncio.sleep(0)
        await kill(engines)
        assert await ask(engines) == 3.0  # waits for the next
        done.set()
        seen = sum([await call for call in calls], Counter[object]())
        assert set(seen) - {Unavailable} == {3.0}
        assert seen[Unavailable] <= 4


async def test_no_process_is_left_when_all_is_closed(scale_shop: Path) -> None:
    FORKS.warm()
    before = set(psutil.Process().children(recursive=True))  # of which some may end meanwhile
    async with serving(scale_shop) as (engines, _):
        assert engines.process_id in {one.pid for one in set(psutil.Process().children(recursive=True)) - before}
        os.kill(engines.process_id, signal.SIGKILL)
    # The fork server waits for what it has forked a moment after it has ended.
    await until(lambda: not set(psutil.Process().children(recursive=True)) - before)


async def test_calls_end_at_their_deadline_though_the_engine_stands_still_and_it_keeps_their_slots(
    scale_shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(scale_shop) as (engines, _):
        process, engine = engines.process_id, engines._engine
        assert engine is not None
        await engines.metrics()
        with caplog.at_level(logging.WARNING):
            stop(engines)
            with pytest.raises(Expired, match="by the deadline"):
                await asyncio.wait_for(ask(engines, seconds=0.05), 30.0)
            deadline = time.monotonic() + 0.05
            with await engines.claim("scale", 1, deadline=deadline) as claim, pytest.raises(Expired):
                await asyncio.wait_for(anext(claim.stream(deadline=deadline)), 30.0)
            assert engine._claims["scale"].free == SLOTS - 2, "the engine may still write to them"
            assert (await engines.metrics())["age"] > 0.0
            assert not await engines.traces()
            await until(lambda: engine.late)
            assert (engines.ready("scale"), engines.live()) == (False, True)
            os.kill(process, signal.SIGCONT)
            await until(lambda: engines.ready("scale") and not engine.late and not engine.owes_answer)
        await until_slots_are_free(engine)
        assert not engine.sent
        assert "age" not in await engines.metrics()
        assert (await ask(engines), engines.process_id) == (2.0, process)
    assert "the engine hangs: nobody has listened for" in caplog.text
    assert "the engine makes progress again" in caplog.text


async def test_an_engine_that_stands_still_for_too_long_is_replaced_and_what_each_decided_replays_alike(
    scale_shop: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events"
    async with serving(scale_shop, patience=0.1, log=log) as (engines, _):
        process = engines.process_id
        await asyncio.gather(*[ask(engines) for _ in range(100)])
        stop(engines)
        with pytest.raises(Unavailable, match="send it again"):
            await ask(engines)
        assert await ask(engines) == 2.0
        assert engines.process_id != process
        assert (await engines.metrics())["restarts"] == 1
    files = sorted(tmp_path.glob("events*"))
    assert len(files) == 2
    for file in files:
        with file.open("rb") as opened:
            events, actions, differs = replayed(*read_log(opened))
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


async def test_only_models_that_were_late_are_to_blame_for_an_engine_that_stood_still() -> None:
    with at_the_frontend() as (client, running):
        running.begin(WORKERS, 1, 0, 600.0)
        running.begin(WORKERS + 1, 2, 0, -1.0)
        assert client.ran() == (0, 1)
        client.look()
        client.look(patience=0.0)
        assert client.ran() == (1,)
        assert cast(Process, client._process).killed == 1


# What is left of an engine: nothing, without a collection, for those of a serving process are rare.


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


async def _kill_under(engines: Engines, count: int) -> None:
    """Kill the engine under so many calls, of which some may wait for slots."""
    engine = engines._engine
    assert engine is not None
    stop(engines)
    calls = [asyncio.create_task(ask(engines)) for _ in range(count)]
    while len(engine.sent) < min(count, SLOTS):
        await asyncio.sleep(0)
    await kill(engines)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(end) for end in ends} == {Unavailable}


ENDS: dict[str, Callable[[Engines], Coroutine[None, None, None]]] = {
    "idle": kill,
    "under calls": lambda engines: _kill_under(engines, CALLS),
    "while calls wait": lambda engines: _kill_under(engines, SLOTS + CALLS),
    "replaced": lambda engines: engines.change(engines.serving, tried=()),
}


@pytest.mark.parametrize("end", ENDS)
async def test_descriptors_of_an_engine_go_with_it(scale_shop: Path, end: str) -> None:
    gc.collect()
    gc.disable()
    try:
        async with serving(scale_shop) as (engines, _):
            assert await ask(engines) == 2.0
            await engines.metrics()
            before = await settled(engines)
            for _ in range(3):
                await ENDS[end](engines)
                assert await ask(engines) == 2.0
            async with asyncio.timeout(30.0):  # some are closed a moment later; what is left by each end stays
                while len(await settled(engines)) > len(before):
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()
