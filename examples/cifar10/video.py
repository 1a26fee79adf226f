"""Frames of a video as rows for a network of 32x32 images: a fixed camera shows much the same again and again.

GATI (section 7.2) classifies frames of fixed cameras with networks for CIFAR-10. The network's answers do
not matter; learned caches are to answer as it does. Needs PyAV: `pip install '.[video]'`.
"""

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from examples.cifar10.data import SIDE
from examples.cifar10.model import normalize
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples


def frames(*, data: str, tiles: str = "1", limit: str = "", name: str = "image") -> Samples:
    """Return the frames of the clip `data` in their order, each as `tiles` x `tiles` images of 32x32.

    `limit` is the most rows. The tiles of a frame follow each other from the upper left one.
    """
    rows: list[Tensor] = []
    most = int(limit) if limit else None
    for frame in _decoded(Path(data)):
        rows.append(_tiles(frame, int(tiles)))
        if most is not None and len(rows) * int(tiles) ** 2 >= most:
            break
    return Samples({name: normalize(torch.cat(rows)[:most])})


def _decoded(clip: Path) -> Iterator[Tensor]:
    """Yield frames `(H, W, 3) uint8`."""
    try:
        with av.open(str(clip)) as container:
            for frame in container.decode(video=0):
                yield torch.from_numpy(np.ascontiguousarray(frame.to_ndarray(format="rgb24")))
    except (OSError, av.FFmpegError) as error:
        raise ConfigError(f"{clip} cannot be read as a video: {error}") from None


def _tiles(frame: Tensor, tiles: int) -> Tensor:
    """Return `(tiles^2, 32, 32, 3) uint8`: the frame averaged down, then cut."""
    small = functional.interpolate(
        frame.permute(2, 0, 1)[None].float(), (SIDE * tiles, SIDE * tiles), mode="bilinear", antialias=True
    )
    pieces = small[0].unfold(1, SIDE, SIDE).unfold(2, SIDE, SIDE)  # (3, tiles, tiles, 32, 32)
    return pieces.permute(1, 2, 3, 4, 0).reshape(tiles**2, SIDE, SIDE, 3).round().clamp(0, 255).to(torch.uint8)
