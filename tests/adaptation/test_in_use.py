"""The version of the learned caches that is wanted is the one in use, whatever dies while it is taken up."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.client import AdaptationClient
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Version, name_of
from latebind.adaptation.messages import AdaptationOrder
from latebind.adaptation.versions import ABOUT, Versions, versions_folder
from latebind.domain.config import AdaptationConfig, EngineConfig, GenerationsConfig, PolicyConfig
from latebind.domain.errors import ConfigError, Unavailable
from latebind.engine.client import EngineClient
from latebind.engine.engines import Engines, probe
from latebind.engine.order import EngineOrder
from latebind.learned.metadata import read_caches, with_caches
from latebind.learned.stored import read_lookup
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Serving
from tests.adaptation.in_use import Noted
from tests.digits import Built
from tests.forked import FORKS

PATIENCE = 60.0
GENERATIONS = GenerationsConfig(crashes=1_000, back_off=0.01)
CONFIG = AdaptationConfig(on=True, sample=1.0, interval=3600.0, yields=False)


@pytest.fixture
def model(built: Built, tmp_path: Path) -> Path:
    """A model of which a version, shown for everything, is current: with it every request leaves early."""
    path = Path(shutil.copytree(built.directory.path, tmp_path / "digits" / "1"))
    there = publish(path)
    there.make_current("000001")
    return path


def publish(path: Path, *, base: str = "") -> Versions:
    directory = ModelDirectory.open(path)
    there, caches = Versions(versions_folder(path), directory), read_caches(directory)
    assert caches is not None
    heads = {one.name: read_lookup(directory, one.name).head for one in caches.lookups}
    levels = dict.fromkeys(heads, -1e9)
    there.publish(Version("", (0.0,) * 10, (1e-4,) * 10, {0: 1.0}, base=base, thresholds=levels), heads)
    return there


@dataclass
class Asking:
    """Calls of one row each, one after another; `used` are the versions that answered, oldest first."""

    engines: Engines
    rows: Built
    used: list[str] = field(default_factory=list)

    async def ask(self) -> str:
        """Ask until an engine answers: the one that was asked may die."""
        while True:
            with suppress(Unavailable):
                return await self._ask()
            await asyncio.sleep(0.01)

    async def _ask(self) -> str:
        deadline = time.monotonic() + PATIENCE
        with await self.engines.claim("digits", 1, deadline=deadline) as claim:
            claim.rows["image"][0][...] = self.rows.unseen[0].numpy()
            answer = await claim.send(deadline=deadline)
        (version,) = map(name_of, answer.caches)
        early = answer.left_at[0] + 1 < self.engines.models["digits"].stages
        assert early == (version == "000001") or version == BUILT
        self.used.append(version)
        return version


@asynccontextmanager
async def serving(built: Built, model: Path) -> AsyncIterator[Asking]:
    order = EngineOrder((), EngineConfig(), PolicyConfig())
    engines = await Engines.start(order, Serving({"digits": model}), FORKS, GENERATIONS)
    try:
        yield Asking(engines, built)
    finally:
        await engines.close()


def kill(engines: Engines) -> None:
    os.kill(engines.process_id, signal.SIGKILL)


async def before_it_is_told(engines: Engines, version: str) -> None:
    kill(engines)
    await engines.adopt("digits", version)


async def when_all_is_done(engines: Engines, version: str) -> None:
    await engines.adopt("digits", version)
    kill(engines)


PROBE = "latebind.engine.engines.probe"


async def while_the_next_one_is_tried(engines: Engines, version: str) -> None:
    """It is chosen, and that engine killed too, before it takes over."""
    killed = asyncio.Event()

    async def choose_and_kill(engine: EngineClient, models: Iterable[str]) -> None:
        await probe(engine, models)
        await engines.adopt("digits", version)
        os.kill(engine.process_id, signal.SIGKILL)
        killed.set()

    with patch(PROBE, choose_and_kill):
        kill(engines)
        await asyncio.wait_for(killed.wait(), PATIENCE)


async def as_others_replace_it(engines: Engines, version: str) -> None:
    change = asyncio.create_task(engines.change(engines.serving, tried=[]))
    await engines.adopt("digits", version)
    await change


STEPS: list[Callable[[Engines, str], Awaitable[None]]] = [
    before_it_is_told,
    when_all_is_done,
    while_the_next_one_is_tried,
    as_others_replace_it,
]


def test_a_version_that_was_stopped_does_not_run_again_wherever_the_engine_dies(built: Built, model: Path) -> None:
    async def test() -> None:
        async with serving(built, model) as asking:
            engines = asking.engines
            assert await asking.ask() == "000001"
            for step in STEPS:
                await engines.adopt("digits", "000001")
                assert await asking.ask() == "000001"
                before = engines.process_id
                await step(engines, FULL_DEPTH)
                answers = await asyncio.gather(*[asking.ask() for _ in range(3)])
                assert engines.process_id != before
                assert answers == [FULL_DEPTH] * 3, step.__name__
                assert engines.wanted("digits") == engines.used("digits") == FULL_DEPTH

    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE))


def test_an_engine_that_cannot_use_what_is_wanted_runs_the_whole_network_and_that_is_told(
    built: Built, model: Path
) -> None:
    async def test() -> None:
        told: list[tuple[str, str]] = []
        async with serving(built, model) as asking:
            asking.engines.on_failed = lambda *failed: told.append(failed)
            await asking.engines.adopt("digits", "000001")
            (versions_folder(model) / "versions" / "000001" / ABOUT).unlink()
            with pytest.raises(ConfigError, match=ABOUT):
                await asking.engines.adopt("digits", "000001")
            assert await asking.ask() == "000001"  # what was served goes on being served
            kill(asking.engines)
            assert await asking.ask() == FULL_DEPTH
            assert told == [("digits", "000001")]
            assert asking.engines.wanted("digits") == FULL_DEPTH

    asyncio.run(asyncio.wait_for(test(), PATIENCE))


@pytest.mark.parametrize("broken", [False, True])
def test_a_service_goes_on_where_exits_were_stopped(model: Path, broken: bool) -> None:
    """For this server alone, or because the current version cannot be read."""
    if broken:
        (versions_folder(model) / "versions" / "000001" / ABOUT).unlink()
    wanted = "" if broken else FULL_DEPTH
    adapter = Adapter(ModelDirectory.open(model), CONFIG, threads=1, backend="eager", wanted=wanted)
    assert adapter.versions.current() == "000001"
    assert adapter.controller.wanted == FULL_DEPTH


class Refusing(Noted):
    """An engine that cannot use a version."""

    async def adopt(self, model: str, version: str) -> None:
        await super().adopt(model, version)
        if version == "000001":
            raise ConfigError("the file of its heads cannot be read")


def test_a_version_that_the_engine_refuses_is_left_by_all_who_share_it(model: Path) -> None:
    directory = ModelDirectory.open(model)
    program = load_program(directory, threads=1)
    spec, _ = with_caches(program.spec, program.costs, read_caches(directory))
    there, engine = Versions(versions_folder(model), directory), Refusing()

    async def test() -> None:
        order = AdaptationOrder((str(model),), CONFIG, threads=1, backend=None, cores=())
        service = await AdaptationClient.start(order, [spec], engine, FORKS)
        try:
            async with asyncio.timeout(PATIENCE):
                while there.current() == "000001" or engine.versions[-1] != there.current():
                    await asyncio.sleep(0.05)
            assert engine.versions[0] == "000001"
        finally:
            await service.close()

    asyncio.run(test())
