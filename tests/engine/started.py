"""An engine that several tests ask, one after another, for to start one takes seconds; and one that does not start."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig, ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.engine.catalogue import Catalogue
from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.repository.listing import Selection, find_served
from tests.forked import FORKS
from tests.versions import WIDTH

SECONDS = 200.0  # that a test may take


@dataclass(frozen=True)
class Started:
    """The client, and the event loop that it belongs to, which runs while a test does."""

    client: EngineClient
    _runner: asyncio.Runner

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self._runner.run(asyncio.wait_for(test, SECONDS))


def soon() -> float:
    return time.monotonic() + 60.0


@asynccontextmanager
async def engine(
    place: Path | Sequence[Path],
    *names: str,
    config: EngineConfig | None = None,
    policy: PolicyConfig | None = None,
    residency: ResidencyConfig | None = None,
    log: Path | None = None,
) -> AsyncIterator[EngineClient]:
    """Have an engine for these model directories, or for what a repository has, or for the `names` that it has."""
    models, queries = find_served(place, names) if isinstance(place, Path) else (place, [])
    order = EngineOrder(
        tuple(map(str, models)),
        config or EngineConfig(),
        policy or PolicyConfig(),
        str(log) if log else None,
        residency=residency or ResidencyConfig(),
        queries=tuple(map(str, queries)),
    )
    client = await EngineClient.start(order, FORKS)
    try:
        yield client
    finally:
        await client.close()


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
        dims = {dim.name: dim.most for dim in claims.spec.dims}
        (await client.claim(name, len(claims), deadline=deadline, dims=dims)).release()
    assert all(claims.free == len(claims) for claims in client._claims.values())


@asynccontextmanager
async def serving(
    place: Path, *, patience: float = 600.0, log: Path | None = None
) -> AsyncIterator[tuple[Engines, Catalogue]]:
    """Serve a repository by real processes; the last may be stopped at the end."""
    selection = Selection(place)
    order = EngineOrder((), EngineConfig(), PolicyConfig(), event_log=str(log) if log else None)
    config = GenerationsConfig(crashes=1000, patience=patience)
    engines = await Engines.start(order, selection.first(), FORKS, config)
    try:
        yield engines, Catalogue(engines, selection)
    finally:
        if engines._engine is not None and engines._engine.live():
            os.kill(engines.process_id, signal.SIGCONT)
        await engines.close()


async def ask(engines: Engines, model: str = "scale", seconds: float = 60.0) -> float:
    """Return what the model multiplies by."""
    deadline = time.monotonic() + seconds
    with await engines.claim(model, 1, deadline=deadline) as claim:
        claim.rows["x"][0][...] = 1.0
        answer = await claim.send(deadline=deadline)
    (rows,) = answer.outputs.values()
    assert rows.shape == (1, WIDTH)
    assert np.ptp(rows) == 0.0
    return float(rows[0, 0])


def is_stopped(process: int) -> bool:
    tasks = Path(f"/proc/{process}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def stop(engines: Engines) -> None:
    """Have the engine that serves stand still; each of its threads has heard of it on return."""
    os.kill(engines.process_id, signal.SIGSTOP)
    while not is_stopped(engines.process_id):
        pass


async def kill(engines: Engines) -> None:
    """Kill the engine that serves, and return when the frontend has heard of it."""
    assert engines._engine is not None
    heard, told = asyncio.Event(), engines._engine.on_lost

    def tell() -> None:
        heard.set()
        if told is not None:
            told()

    engines._engine.on_lost = tell
    os.kill(engines.process_id, signal.SIGKILL)
    await asyncio.wait_for(heard.wait(), 30.0)
