"""Models that tests of the engine share."""

import gc
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
import torch

from tests.building import build_stages, made_once
from tests.engine.resident import WIDTH, Tied
from tests.versions import add_version


@pytest.fixture
def frozen() -> Iterator[None]:
    """Have a collection look at what a test makes alone, as in an engine: its fork server froze all that was there.

    Each piece that is measured takes two, and what a process of tests has imported makes each take up to a second.
    """
    gc.freeze()
    yield
    gc.unfreeze()


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
