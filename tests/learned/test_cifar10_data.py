"""The CIFAR-10 example's data: sheets are decoded in order, alterations are bounded and the same each time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples.cifar10.data import (
    WORLDS,
    load_images,
    unseen,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five sheets of 1,000 images; image i of sheet s has the color (s, row of it, column of it) all over."""
    for sheet in range(5):
        pixels = np.zeros((25, 32, 40, 32, 3), dtype=np.uint8)
        pixels[..., 0] = sheet
        pixels[..., 1] = np.arange(25)[:, None, None, None]
        pixels[..., 2] = np.arange(40)[None, None, :, None]
        Image.fromarray(pixels.reshape(800, 1280, 3)).save(tmp_path / f"test_{sheet:02d}.webp", lossless=True)
    (tmp_path / "test_labels.json").write_text(json.dumps([i % 10 for i in range(5_000)]))
    return tmp_path


def images(count: int = 6) -> torch.Tensor:
    return torch.rand((count, 3, 32, 32), generator=torch.Generator().manual_seed(0))


def test_images_come_out_of_the_sheets_in_order(folder: Path) -> None:
    pixels, labels = load_images(folder, "test", limit=1_042)
    assert pixels.shape == (1_042, 32, 32, 3)
    assert pixels[41, 0, 0].tolist() == [0, 1, 1]
    assert pixels[1_000, 31, 31].tolist() == [1, 0, 0]
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert len(unseen(data=str(folder), limit="7")) == 7


@pytest.mark.parametrize("name", WORLDS)
def test_alterations_keep_shape_and_range_and_are_the_same_each_time(name: str) -> None:
    one, other = (WORLDS[name](images(), 1.0, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    assert one.shape == (6, 3, 32, 32)
    assert 0.0 <= float(one.min()) <= float(one.max()) <= 1.0
    assert not torch.equal(one, images())
