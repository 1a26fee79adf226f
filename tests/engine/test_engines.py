"""Engines that follow one another, with real processes: crashes, changes, and what is answered meanwhile."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from latebind.domain.config import EngineConfig, GenerationsConfig, PolicyConfig, RepositoryConfig
from latebind.domain.errors import InvalidRequest, LatebindError, NotFound, RepositoryError, Unavailable
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.program.build import build_program
from latebind.repository.listing import Selection
from latebind.repository.mirror import open_selection
from research.faults.models import Scale
from tests.engine.started import loss_of
from tests.forked import FORKS
from tests.versions import QUERY, WIDTH, add_version, spoil

TIMES = 1 << 14


class Lasting(Scale):
    """Multiplies too, but a run lasts long enough to be met: hardly one of a few microseconds is, on a single core."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to `(B, 16) float32`."""
        many: Tensor = super().forward(x).repeat(1, TIMES)
        return many.view(-1, TIMES, WIDTH).amax(1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of `scale`, times 2, and of `other`, times 5; aside in `later/scale/2` times 3."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("versions")
    build_program(
        Lasting(2.0).eval(),
        {"x": torch.ones(2, WIDTH)},
        directory=root / "scale" / "1",
        name="scale",
        backends=["eager"],
        max_batch=2,
        max_overhead=None,
    )
    add_version(root, "other", 1, 5.0)
    add_version(root / "later", "scale", 2, 3.0)
    return root


@pytest.fixture
def shop(built: Path, tmp_path: Path) -> Path:
    """A repository of one's own with the first versions."""
    for name in ("scale", "other"):
        copytree(built / name, tmp_path / name)
    return tmp_path


@asynccontextmanager
async def serving(root: Path | Selection, *names: str, crashes: int = 3) -> AsyncIterator[tuple[Engines, Catalogue]]:
    selection = root if isinstance(root, Selection) else Selection(root, names)
    config = GenerationsConfig(crashes=crashes, within=600.0)  # however slow the machine is
    engines = await Engines.start(EngineOrder((), EngineConfig(), PolicyConfig()), selection.first(), FORKS, config)
    try:
        yield engines, Catalogue(engines, selection)
    finally:
        await engines.close()


async def ask(engines: Engines, model: str = "scale", seconds: float = 60.0) -> float:
    """Return what the model multiplies by."""
    deadline = time.monotonic() + seconds
    claim = await engines.claim(model, 1, deadline=deadline)
    try:
        claim.rows["x"][0][...] = 1.0
        answer = await claim.send(deadline=deadline)
    finally:
        claim.release()
    (rows,) = answer.outputs.values()
    assert rows.shape == (1, WIDTH)
    assert np.ptp(rows) == 0.0
    return float(rows[0, 0])


async def ask_on(engines: Engines, until: asyncio.Event, model: str = "scale") -> Counter[object]:
    """Ask again and again; return how often came which answer or error."""
    seen: Counter[object] = Counter()
    while not until.is_set():
        try:
            seen[await ask(engines, model)] += 1
        except LatebindError as error:
            seen[type(error)] += 1
            await asyncio.sleep(0.001)  # what is refused at once lets nobody else run
    return seen


def is_stopped(process: int) -> bool:
    tasks = Path(f"/proc/{process}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


async def ended(engines: Engines) -> None:
    """Return when the processes of all engines that were replaced have ended."""
    async with asyncio.timeout(60.0):
        await asyncio.gather(*engines._tasks)
    assert not engines._ending


async def kill(engines: Engines) -> None:
    """Kill the engine that serves, and return when the frontend has heard of it."""
    assert engines._engine is not None
    lost = loss_of(engines._engine)
    os.kill(engines.process_id, signal.SIGKILL)
    await asyncio.wait_for(lost.wait(), 30.0)


async def kill_while_it_runs(engines: Engines, model: str) -> None:
    """Stop the engine when it runs this model alone, and kill it; return when the frontend has heard."""
    async with asyncio.timeout(60.0):
        while not engines.ready():  # after a crash, engines with some of the models come before
            await asyncio.sleep(0.01)
    engine = engines._engine
    assert engine is not None
    number = [name for name, spec in engine.models.items() if not spec.steps].index(model)
    while True:
        os.kill(engine.process_id, signal.SIGSTOP)
        while not is_stopped(engine.process_id):  # a run may end before each of its threads hears of it
            pass
        if engine.ran() == (number,):
            await kill(engines)
            return
        os.kill(engine.process_id, signal.SIGCONT)
        await asyncio.sleep(0.0005)  # the engine's process writes what it runs to shared memory and tells nobody


async def test_a_dead_engine_is_followed_by_another_and_every_call_is_answered(shop: Path) -> None:
    async with serving(shop) as (engines, _):
        done = asyncio.Event()
        calls = [asyncio.create_task(ask_on(engines, done)) for _ in range(4)]
        await asyncio.sleep(0)
        first = engines.process_id
        await kill_while_it_runs(engines, "scale")
        assert not engines.ready()
        assert engines.live()
        assert await ask(engines) == 2.0  # waits for the next
        assert engines.ready("scale")
        assert engines.process_id != first
        assert (await engines.metrics())["restarts"] == 1
        done.set()
        seen = sum([await call for call in calls], Counter[object]())
        assert set(seen) == {2.0, Unavailable}
        assert seen[Unavailable] <= 4


async def test_nobody_waits_for_an_engine_beyond_the_deadline(shop: Path) -> None:
    async with serving(shop, "scale") as (engines, _):
        forks = psutil.Process(engines.process_id).parent()
        assert forks is not None
        forks.suspend()  # so that no engine follows
        try:
            await kill(engines)
            assert not engines.ready()
            with pytest.raises(Unavailable, match="starting again"):
                await asyncio.wait_for(ask(engines, seconds=0.05), 30.0)
        finally:
            forks.resume()


@pytest.mark.slow
async def test_a_model_with_which_engines_die_is_left_out_and_the_others_are_served(shop: Path) -> None:
    (shop / "asking.query.toml").write_text(QUERY)
    async with serving(shop) as (engines, catalogue):
        done = asyncio.Event()
        calls = [asyncio.create_task(ask_on(engines, done)) for _ in range(4)]
        for _ in range(3):
            assert await ask(engines, "other") == 5.0
            await kill_while_it_runs(engines, "scale")
            assert not engines.ready()
        assert await ask(engines, "other") == 5.0
        with pytest.raises(Unavailable, match="the engine died 3 times"):
            await ask(engines)
        assert not engines.ready("scale")
        states = {entry["name"]: entry["state"] for entry in catalogue.index()}
        assert states == {"scale": "UNAVAILABLE", "other": "READY", "asking": "UNAVAILABLE"}
        await catalogue.load("scale")
        assert await ask(engines) == 2.0
        assert engines.ready("asking")
        done.set()
        await asyncio.gather(*calls)


@pytest.mark.slow
async def test_a_model_that_cannot_be_loaded_again_is_left_out_and_the_others_are_served(shop: Path) -> None:
    async with serving(shop) as (engines, catalogue):
        spoil(shop / "scale" / "1")
        await kill(engines)
        assert not engines.ready()
        assert await ask(engines, "other") == 5.0
        with pytest.raises(Unavailable, match="differs from the manifest"):
            await ask(engines)
        assert catalogue.unavailable("scale")


async def test_a_new_version_takes_over_and_nobody_who_calls_sees_an_error(built: Path, shop: Path) -> None:
    async with serving(shop) as (engines, catalogue):
        done = asyncio.Event()
        calls = [asyncio.create_task(ask_on(engines, done)) for _ in range(4)]
        copytree(built / "later" / "scale" / "2", shop / "scale" / "2")
        assert await catalogue.reload() == ["scale"]
        assert await ask(engines) == 3.0
        assert engines.models["scale"].version == "2"
        await ended(engines)
        done.set()
        seen = sum([await call for call in calls], Counter[object]())
        assert set(seen) == {2.0, 3.0}
        assert await catalogue.reload() == []


async def test_a_bad_version_leaves_the_old_one_serving_and_says_why(built: Path, shop: Path) -> None:
    async with serving(shop, "scale") as (engines, catalogue):
        spoil(Path(copytree(built / "later" / "scale" / "2", shop / "scale" / "2")))
        with pytest.raises(RepositoryError, match=r"^scale/2/weights.safetensors differs"):
            await catalogue.load("scale")
        assert await catalogue.reload() == []
        (entry,) = catalogue.index()
        assert (entry["version"], entry["state"]) == ("1", "READY")
        assert "scale/2/weights.safetensors" in entry["reason"]
        assert await ask(engines) == 2.0
        with pytest.raises(NotFound, match="'scale' has no version '7' in the repository: it has 1, 2"):
            await catalogue.load("scale", "7")


@pytest.mark.slow
async def test_what_a_query_needs_is_only_unloaded_with_it(shop: Path) -> None:
    (shop / "asking.query.toml").write_text(QUERY)
    async with serving(shop) as (engines, catalogue):
        assert await ask(engines, "asking") == 2.0
        with pytest.raises(InvalidRequest, match="asking needs scale"):
            await catalogue.unload("scale")
        await catalogue.unload("scale", dependents=True)
        assert list(engines.models) == ["other"]
        with pytest.raises(NotFound):
            await ask(engines, "asking")
        assert await catalogue.reload() == []  # it stays so
        await catalogue.load("asking")
        assert await ask(engines, "asking") == 2.0


@pytest.mark.slow
async def test_the_last_model_may_go_and_come_back(shop: Path) -> None:
    async with serving(shop, "scale") as (engines, catalogue):
        await catalogue.unload("scale")
        assert engines.ready()
        assert [entry["state"] for entry in catalogue.index()] == ["UNAVAILABLE"]
        with pytest.raises(NotFound):
            await ask(engines)
        await catalogue.load("scale")
        assert await ask(engines) == 2.0


@pytest.mark.slow
async def test_a_version_that_was_wished_for_stays(built: Path, shop: Path) -> None:
    async with serving(shop, "scale") as (engines, catalogue):
        copytree(built / "later" / "scale" / "2", shop / "scale" / "2")
        await catalogue.load("scale", "1")
        assert await catalogue.reload() == []
        assert await ask(engines) == 2.0
        await catalogue.load("scale")
        assert await ask(engines) == 3.0


async def test_no_process_is_left_when_all_is_closed(shop: Path) -> None:
    FORKS.warm()
    before = set(psutil.Process().children(recursive=True))
    async with serving(shop, "scale") as (engines, _):
        assert len(set(psutil.Process().children(recursive=True)) - before) == 1
        os.kill(engines.process_id, signal.SIGKILL)
    assert not set(psutil.Process().children(recursive=True)) - before  # of which some may end meanwhile


async def test_a_version_that_appears_at_a_url_is_followed(built: Path, shop: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    place = open_selection(f"file://{shop}", ["scale"], RepositoryConfig(cache=str(tmp_path / "cache")))
    async with serving(place) as (engines, catalogue):
        changed = asyncio.Event()
        engines.on_change = changed.set
        following = asyncio.create_task(catalogue.follow(0.05))
        try:
            assert await ask(engines) == 2.0
            copytree(built / "later/scale/2", shop / "scale/2")
            await asyncio.wait_for(changed.wait(), 60.0)
            assert await ask(engines) == 3.0
        finally:
            following.cancel()
