"""The speech example's data: read once each, parted by place, altered within bounds and the same each time."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.speech.data import (
    FILE,
    FOLDS,
    LEARNED,
    MEAN,
    UNSEEN,
    alter,
    learned_clips,
    load_clips,
    samples,
    unseen,
    unseen_clips,
)
from examples.speech.model import vgg
from latebind.domain.errors import ConfigError

CLASSES, EACH = 3, 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fifty clips a class, the last a copy; clip i holds i in all cells but one, and that the class."""
    stored = np.empty((CLASSES * EACH, 40, 98), dtype=np.uint8)
    labels = np.repeat(np.arange(CLASSES), EACH)
    stored[:] = np.tile(np.arange(EACH), CLASSES)[:, None, None]
    stored[:, 0, 0] = labels
    stored[-1] = stored[-2]
    np.savez(tmp_path / FILE, x=stored, y=labels.astype(np.uint8), lo=np.float32(0), hi=np.float32(255))
    return tmp_path


def test_a_clip_that_is_there_twice_is_read_once(folder: Path) -> None:
    clips = load_clips(folder)
    assert len(clips.labels) == CLASSES * EACH - 1
    assert clips.features[EACH + 7, 1].tolist() == [7.0] * 98
    assert clips.labels[EACH + 7] == 1


def test_no_place_is_both_learned_and_unseen(folder: Path) -> None:
    learned, new = learned_clips(folder), unseen_clips(folder)
    assert learned.labels.bincount().tolist() == [29] * CLASSES
    assert float(learned.places.max()) < LEARNED < UNSEEN <= float(new.places.min())


def test_folds_of_unseen_rows_are_ranges_of_places(folder: Path) -> None:
    inputs = unseen(data=str(folder)).inputs
    assert isinstance(inputs, dict)
    clip = inputs["sound"][:, 0, 1, 1]
    folds = [clip[fold::FOLDS] for fold in range(FOLDS)]
    assert all(bool((one.max() <= other.min()).all()) for one, other in pairwise(folds))


def test_views_of_a_clip_are_neighbours_with_its_label(folder: Path) -> None:
    fit, held_out = samples(data=str(folder), views="2")
    assert len(fit) == 2 * CLASSES * 29
    assert fit.labels is not None
    assert torch.equal(fit.labels[::2], fit.labels[1::2])
    assert len(held_out) == len(unseen(data=str(folder)))


def test_altered_clips_keep_their_shape_and_are_the_same_each_time() -> None:
    clips = torch.randn((20, 40, 98), generator=torch.Generator().manual_seed(0))
    one, other = (alter(clips, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, other)
    assert one.shape == clips.shape
    hidden = (one == MEAN).float().mean()
    assert 0.05 < float(hidden) < 0.35


def test_a_folder_without_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_clips(tmp_path)
    np.savez(tmp_path / FILE, x=np.zeros((2, 4, 4)), y=np.zeros(2), lo=0.0, hi=1.0)
    with pytest.raises(ConfigError, match="not uint8"):
        load_clips(tmp_path)


def test_the_network_tells_twelve_classes() -> None:
    assert vgg().eval()(torch.randn(2, 1, 40, 98)).shape == (2, 12)
