"""Recovery of an engine while another change takes over: what the old set lacks is nothing against the new one."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree

import pytest

from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig
from latebind.domain.errors import Unavailable
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder, backend_imports
from latebind.forks.client import Forked, ForkServer
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes
from latebind.repository.listing import Selection
from tests.engine.test_engines import ask, ended, kill
from tests.forked import FORKS
from tests.versions import add_version, spoil

BACK_OFF = 30.0


class Held(ForkServer):
    """Forks as all tests do, but the second process, with which an engine recovers, waits until the test says `go`.

    With `full`, there is no room for that one. It may be another than the second that is `held`.
    """

    def __init__(self, *, held: int = 2) -> None:
        super().__init__()
        self.asked = 0
        self.held = held
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.full = False

    async def forked(
        self, module: str, words: Sequence[str], *, name: str, inherited: Sequence[int], imports: Sequence[str] = ()
    ) -> Forked:
        self.asked += 1
        if self.asked == self.held:
            self.reached.set()
            await self.go.wait()
            if self.full:
                raise OSError("no room")
        return await FORKS.forked(module, words, name=name, inherited=inherited, imports=imports)


@asynccontextmanager
async def recovering(scale_shop: Path) -> AsyncIterator[tuple[Held, Engines, Catalogue]]:
    """Have an engine that died, and the start of the next one waiting."""
    forks, selection = Held(), Selection(scale_shop)
    order, config = EngineOrder((), EngineConfig(), PolicyConfig()), GenerationsConfig(back_off=BACK_OFF)
    engines = await Engines.start(order, selection.first(), forks, config)
    try:
        await kill(engines)
        await asyncio.wait_for(forks.reached.wait(), 30.0)  # else a change may ask for the second process
        yield forks, engines, Catalogue(engines, selection)
    finally:
        await engines.close()


async def replace(scales: Path, scale_shop: Path, catalogue: Catalogue) -> None:
    """Have the second version take over."""
    copytree(scales / "later" / "scale" / "2", scale_shop / "scale" / "2")
    assert await catalogue.reload() == ["scale"]


async def test_a_model_is_not_left_out_because_the_version_before_cannot_be_loaded_any_more(
    scales: Path, scale_shop: Path
) -> None:
    async with recovering(scale_shop) as (forks, engines, catalogue):
        await replace(scales, scale_shop, catalogue)
        spoil(scale_shop / "scale" / "1")
        forks.go.set()
        await ended(engines)
        assert engines.unavailable == {}
        assert engines.ready("scale")
        assert await ask(engines) == 3.0


async def test_what_has_been_replaced_is_not_started_again(scales: Path, scale_shop: Path) -> None:
    async with recovering(scale_shop) as (forks, engines, catalogue):
        await replace(scales, scale_shop, catalogue)
        forks.full = True
        forks.go.set()
        await ended(engines)
        assert forks.asked == 3
        assert await ask(engines) == 3.0


async def test_what_is_replaced_between_two_attempts_is_not_started_again(
    scales: Path, scale_shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recovering(scale_shop) as (forks, engines, catalogue):
        forks.full = True
        forks.go.set()
        await asyncio.wait_for(engines._settled.wait(), 30.0)  # none is expected soon
        await replace(scales, scale_shop, catalogue)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + BACK_OFF)
        await ended(engines)
        assert forks.asked == 3
        assert await ask(engines) == 3.0


async def test_calls_for_a_model_that_is_up_are_answered_while_others_load(scale_shop: Path) -> None:
    add_version(scale_shop, "other", 1, 5.0)
    forks, selection = Held(held=3), Selection(scale_shop)
    order, config = EngineOrder((), EngineConfig(), PolicyConfig()), GenerationsConfig()
    engines = await Engines.start(order, selection.first(), forks, config)
    try:
        os.kill(engines.process_id, signal.SIGSTOP)
        lost = asyncio.create_task(ask(engines, "other"))  # this model was asked last, so it comes first
        await asyncio.sleep(0)
        await kill(engines)
        with pytest.raises(Unavailable, match="send it again"):
            await lost
        assert await ask(engines, "other") == 5.0
        assert (engines.ready("other"), engines.ready("scale"), engines.ready()) == (True, False, False)
        with pytest.raises(Unavailable, match="starting again"):
            await ask(engines, "scale", seconds=0.05)
        waiting = asyncio.create_task(ask(engines, "scale"))
        forks.go.set()
        assert await waiting == 2.0
        assert engines.ready()
        assert (await engines.metrics())["restarts"] == 1
    finally:
        await engines.close()


def test_what_backends_import_is_told_before_an_engine_is_forked(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    places = []
    for name, backend in (("one", "openvino"), ("other", "eager")):
        ModelDirectory.create(tmp_path / name / "1", {MODEL: json_bytes({"name": name, "backend": backend})})
        places.append(tmp_path / name / "1")
    assert backend_imports(places, None) == ["openvino"]
    assert backend_imports(places[1:], None) == []
    assert backend_imports(places, "eager") == []
    assert backend_imports([tmp_path / "not there"], None) == []  # the engine says so
