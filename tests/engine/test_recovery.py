"""Recovery of an engine while another change takes over: what the old set lacks is nothing against the new one."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree

import pytest

from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.forks.client import Forked, ForkServer
from latebind.repository.selection import Selection
from tests.engine.test_engines import ask, ended, kill, run
from tests.forked import FORKS
from tests.versions import spoil

BACK_OFF = 30.0


class Held(ForkServer):
    """Forks as all tests do, but the second process, with which an engine recovers, waits until the test says `go`.

    With `full`, there is no room for that one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.go = asyncio.Event()
        self.full = False

    async def forked(self, module: str, words: Sequence[str], *, name: str, inherited: Sequence[int]) -> Forked:
        self.asked += 1
        if self.asked == 2:
            await self.go.wait()
            if self.full:
                raise OSError("no room")
        return await FORKS.forked(module, words, name=name, inherited=inherited)


@asynccontextmanager
async def recovering(scale_shop: Path) -> AsyncIterator[tuple[Held, Engines, Catalogue]]:
    """Have an engine that died, and the start of the next one waiting."""
    forks, selection = Held(), Selection(scale_shop)
    order, config = EngineOrder((), EngineConfig(), PolicyConfig()), GenerationsConfig(back_off=BACK_OFF)
    engines = await Engines.start(order, selection.first(), forks, config)
    try:
        await kill(engines)
        yield forks, engines, Catalogue(engines, selection)
    finally:
        await engines.close()


async def replace(scales: Path, scale_shop: Path, catalogue: Catalogue) -> None:
    """Have the second version take over."""
    copytree(scales / "later" / "scale" / "2", scale_shop / "scale" / "2")
    assert await catalogue.reload() == ["scale"]


def test_a_model_is_not_left_out_because_the_version_before_cannot_be_loaded_any_more(
    scales: Path, scale_shop: Path
) -> None:
    async def test() -> None:
        async with recovering(scale_shop) as (forks, engines, catalogue):
            await replace(scales, scale_shop, catalogue)
            spoil(scale_shop / "scale" / "1")
            forks.go.set()
            await ended(engines)
            assert engines.unavailable == {}
            assert engines.ready("scale")
            assert await ask(engines) == 3.0

    run(test())


def test_what_has_been_replaced_is_not_started_again(scales: Path, scale_shop: Path) -> None:
    async def test() -> None:
        async with recovering(scale_shop) as (forks, engines, catalogue):
            await replace(scales, scale_shop, catalogue)
            forks.full = True
            forks.go.set()
            await ended(engines)
            assert forks.asked == 3
            assert await ask(engines) == 3.0

    run(test())


def test_what_is_replaced_between_two_attempts_is_not_started_again(
    scales: Path, scale_shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with recovering(scale_shop) as (forks, engines, catalogue):
            forks.full = True
            forks.go.set()
            await asyncio.wait_for(engines._settled.wait(), 30.0)  # none is expected soon
            await replace(scales, scale_shop, catalogue)
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + BACK_OFF)
            await ended(engines)
            assert forks.asked == 3
            assert await ask(engines) == 3.0

    run(test())
