"""Model directories that several tests share, built once for a whole run."""

from pathlib import Path

import pytest
import torch

from latebind.program.build import build_program
from tests.digits import Built, build_digits
from tests.networks import Chain, Words


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `chain`, four stages of small convolutions, and `words`, which raises for words past its list."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    built = build_program(
        Chain(),
        {"image": images},
        directory=root / "chain" / "1",
        name="chain",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=8,
    )
    assert len(built.stages) >= 4
    words = torch.zeros(2, 3, dtype=torch.int64)
    build_program(Words(), {"word": words}, directory=root / "words" / "1", name="words", backends=["eager"])
    return root


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Digits with learned caches; `built.directory.path` is `digits/1` in a folder of its own."""
    folder = tmp_path_factory.mktemp("built") / "digits"
    folder.mkdir()
    return build_digits(folder, candidates=2)
