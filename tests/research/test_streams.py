"""Streams of requests whose classes are not even."""

import numpy as np

from research.gati.locality import jittered, zipf_stream


def test_classes_come_as_zipfs_law_says_and_another_dominates_in_each_phase() -> None:
    labels = np.repeat(np.arange(4), 500)
    stream = zipf_stream(labels, alpha=2.0, phases=3, length=4_000, random=np.random.default_rng(0))
    weights = np.arange(1, 5.0) ** -2.0
    tops = []
    for phase in np.split(labels[stream], 3):
        shares = np.bincount(phase, minlength=4) / len(phase)
        np.testing.assert_allclose(np.sort(shares)[::-1], weights / weights.sum(), atol=0.03)
        tops.append(int(shares.argmax()))
    assert len(set(tops)) == 3


def test_no_row_comes_again_before_all_of_its_class_came() -> None:
    labels = np.zeros(50, dtype=np.int64)
    stream = zipf_stream(labels, alpha=1.0, phases=1, length=100, random=np.random.default_rng(0))
    assert sorted(stream[:50]) == sorted(stream[50:]) == list(range(50))


def test_a_jittered_image_is_the_same_image_moved() -> None:
    image = np.arange(3 * 6 * 5, dtype=np.float32).reshape(3, 6, 5)
    random = np.random.default_rng(0)
    moved = [jittered(image, 1, random) for _ in range(20)]
    assert all(one.shape == image.shape and one.dtype == image.dtype for one in moved)
    assert all(np.isin(one, image).all() for one in moved)
    assert any(not np.array_equal(one, image) for one in moved)
    assert jittered(image, 0, random) is image
