"""Models that tests of the engine share."""

import asyncio
import gc
import inspect
from pathlib import Path
from shutil import copytree

import pytest
import torch

from tests.building import build_stages, made_once
from tests.engine.resident import WIDTH, Tied
from tests.engine.started import SECONDS, Started
from tests.versions import add_version


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine: in the event loop of the engine that it shares with others, or in its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    shared = [value for value in given.values() if isinstance(value, Started)]
    if shared:
        shared[0].run(pyfuncitem.obj(**given))
    else:
        asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), SECONDS))
    return True


@pytest.fixture
def frozen() -> None:
    """Have what was imported since the tests were collected be left out of collections too."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `one/1` and `two/1` of the same model."""
    return made_once(tmp_path_factory, "wide", build_wide)


def build_wide(root: Path) -> None:
    torch.set_num_threads(1)
    rows = {"x": torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))}
    for name in ("one", "two"):
        build_stages(Tied(), rows, root / name / "1", name=name, max_batch=2)


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of `scale`, times 2; aside in `later/scale/2` times 3."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("versions")
    add_version(root, "scale", 1, 2.0)
    add_version(root / "later", "scale", 2, 3.0)
    return root


@pytest.fixture
def scale_shop(scales: Path, tmp_path: Path) -> Path:
    """A repository with the first version of `scale`, to change."""
    copytree(scales / "scale", tmp_path / "scale")
    return tmp_path
