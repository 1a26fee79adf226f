"""Models that tests of the engine share."""

from pathlib import Path

import pytest
import torch

from latebind.program.build import build_program
from tests.engine.resident import WIDTH, Tied


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `one/1` and `two/1` of the same model, and `openvino/1`, for that backend."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("wide")
    rows = {"x": torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0))}
    for name, backend in (("one", "eager"), ("two", "eager")):
        build_program(
            Tied(),
            rows,
            directory=root / name / "1",
            name=name,
            backends=[backend],
            min_stage_seconds=0.0,
            max_overhead=None,
            max_batch=2,
        )
    return root
