"""The video example's data: frames come in their order, tiles from the upper left one."""

from pathlib import Path

import av
import numpy as np
import pytest

from examples.cifar10.model import MEAN, STD
from examples.cifar10.video import frames
from latebind.domain.errors import ConfigError
from latebind.learned.samples import whole


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Four frames, ever brighter; in each the lower half is black."""
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 128, 64, "bgr0"
        for number in range(4):
            picture = np.zeros((64, 128, 3), np.uint8)
            picture[:32] = 60 * number
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def brightness(clip: Path, **options: str) -> list[int]:
    inputs = frames(data=str(clip), **options).inputs
    assert isinstance(inputs, dict)
    rows = whole(inputs["image"])
    assert rows.shape[1:] == (3, 32, 32)
    red = rows[:, 0].mean(dim=(1, 2)) * STD[0] + MEAN[0]
    return [round(float(value) * 255) for value in red]


def test_frames_and_tiles_come_in_their_order(clip: Path) -> None:
    assert brightness(clip) == [0, 30, 60, 90]
    assert brightness(clip, tiles="2", limit="5") == [0, 0, 0, 0, 60]
    assert brightness(clip, tiles="2") == [0, 0, 0, 0, 60, 60, 0, 0, 120, 120, 0, 0, 180, 180, 0, 0]


def test_a_file_that_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(ConfigError, match="cannot be read as a video"):
        frames(data=str(tmp_path / "clip.mp4"))
