"""The speech example's data: read once each, parted by place, altered within bounds and the same each time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.speech.data import (
    FILE,
    GAIN,
    LEARNED,
    MEAN,
    STD,
    UNSEEN,
    alter,
    learned_clips,
    load_clips,
    samples,
    unseen,
    unseen_clips,
)
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

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


def sounds(found: Samples) -> Tensor:
    """The logarithms that samples were made from."""
    assert isinstance(found.inputs, dict)
    return found.inputs["sound"][:, 0] * STD + MEAN


def test_a_clip_that_is_there_twice_is_read_once(folder: Path) -> None:
    clips = load_clips(folder)
    assert len(clips.labels) == CLASSES * EACH - 1
    assert clips.features[EACH + 7, 1].tolist() == pytest.approx([7.0 + LOW] * 98)
    assert clips.labels[EACH + 7] == 1


def test_no_place_is_both_learned_and_unseen(folder: Path) -> None:
    learned, new = learned_clips(folder), unseen_clips(folder)
    assert learned.labels.bincount().tolist() == [29] * CLASSES
    assert float(learned.places.max()) < LEARNED < UNSEEN <= float(new.places.min())


def test_unseen_clips_come_as_they_are_with_their_labels(folder: Path) -> None:
    found, clips = unseen(data=str(folder)), unseen_clips(folder).features
    assert found.labels is not None
    assert sounds(found)[:, 0, 0].tolist() == pytest.approx((found.labels + LOW).tolist(), abs=1e-3)
    rest = sounds(found)[:, 1:].amax(dim=(1, 2))
    assert sorted(rest.tolist()) == pytest.approx(sorted(clips[:, 1, 1].tolist())[: len(rest)], abs=1e-3)


def test_views_of_a_clip_are_neighbours_with_its_label(folder: Path) -> None:
    fit, held_out = samples(data=str(folder), views="2")
    learned = learned_clips(folder)
    assert fit.labels is not None
    assert torch.equal(fit.labels, learned.labels.repeat_interleave(2))
    clip = learned.features[:, 1, 1].repeat_interleave(2)
    assert (sounds(fit).flatten(1).median(dim=1).values - clip).abs().max() < 2 * GAIN
    assert len(held_out) == len(unseen(data=str(folder)))


def test_a_seed_is_one_set_of_views(folder: Path) -> None:
    one, again, other = (sounds(samples(data=str(folder), views="1", seed=seed)[0]) for seed in ("0", "0", "1"))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


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
