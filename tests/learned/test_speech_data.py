"""The speech example's data: read once each, parted by place, altered within bounds and the same each time."""

from pathlib import Path

import numpy as np
import pytest

from examples.speech.data import (
    FILE,
    LEARNED,
    UNSEEN,
    learned_clips,
    load_clips,
    unseen_clips,
)
from latebind.domain.errors import ConfigError

CLASSES, EACH, LOW = 3, 50, -20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fifty clips a class, the last a copy; clip i holds i + LOW in all cells but one, and that the class + LOW."""
    stored = np.empty((CLASSES * EACH, 40, 98), dtype=np.uint8)
    labels = np.repeat(np.arange(CLASSES), EACH)
    stored[:] = np.tile(np.arange(EACH), CLASSES)[:, None, None]
    stored[:, 0, 0] = labels
    stored[-1] = stored[-2]
    np.savez(tmp_path / FILE, x=stored, y=labels.astype(np.uint8), lo=np.float32(LOW), hi=np.float32(LOW + 255))
    return tmp_path


def test_a_clip_that_is_there_twice_is_read_once(folder: Path) -> None:
    clips = load_clips(folder)
    assert len(clips.labels) == CLASSES * EACH - 1
    assert clips.features[EACH + 7, 1].tolist() == pytest.approx([7.0 + LOW] * 98)
    assert clips.labels[EACH + 7] == 1


def test_no_place_is_both_learned_and_unseen(folder: Path) -> None:
    learned, new = learned_clips(folder), unseen_clips(folder)
    assert learned.labels.bincount().tolist() == [29] * CLASSES
    assert float(learned.places.max()) < LEARNED < UNSEEN <= float(new.places.min())


def test_a_folder_without_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_clips(tmp_path)
    np.savez(tmp_path / FILE, x=np.zeros((2, 4, 4)), y=np.zeros(2), lo=0.0, hi=1.0)
    with pytest.raises(ConfigError, match="not uint8"):
        load_clips(tmp_path)
