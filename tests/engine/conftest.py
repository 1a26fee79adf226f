"""Models that tests of the engine share."""

from pathlib import Path

import pytest
import torch

from tests.building import build_stages, made_once
from tests.engine.resident import WIDTH, Tied


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `one/1` and `two/1` of the same model."""
    return made_once(tmp_path_factory, "wide", build_wide)


def build_wide(root: Path) -> None:
    torch.set_num_threads(1)
    rows = {"x": torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))}
    for name in ("one", "two"):
        build_stages(Tied(), rows, root / name / "1", name=name, max_batch=2)
