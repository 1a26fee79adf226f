"""Spoken commands as log-mel features from a file, parted by speaker, and samples for learned caches.

Clips do not name their speakers, but those of a word come in the order of the speakers' names, so a speaker has about
the same place in each word. Parts are therefore ranges of places, with a gap between what the network learns and what
it never sees. The class of unknown words has another order: its clips are new in each part, its speakers may not be.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

FILE = "speech_commands_v002_logmel.npz"
BANDS, FRAMES = 40, 98
MEAN, STD = -6.1, 4.9  # of all features, natural logarithms of energy

LEARNED, UNSEEN = 0.58, 0.62  # places below the first are learned, from the second on unseen; a speaker spans 0.03
FOLDS = 5  # ranges of places among the unseen

SHIFT = 12  # frames, of 10 ms
GAIN = 1.5  # natural logarithms of energy: 6.5 dB
TILT = 0.8  # the same, between the middle and either end of the bands
MOST_BANDS, MOST_FRAMES = 8, 20  # that a mask hides
NOISE = 0.2


@dataclass(frozen=True, slots=True)
class Clips:
    """Features `(N, 40, 98) float32`, natural logarithms; classes `(N,) int64`; places `(N,) float32` in 0 to 1."""

    features: Tensor
    labels: Tensor
    places: Tensor

    def where(self, chosen: Tensor) -> "Clips":
        """Return the clips at these row numbers, or where a mask is true."""
        return Clips(self.features[chosen], self.labels[chosen], self.places[chosen])


def samples(*, data: str, views: str = "8", seed: str = "0") -> tuple[Samples, Samples]:
    """Return samples to fit learned caches, altered copies of what the network learned, and unseen ones to calibrate.

    `data` is the folder of the features. Each clip to fit is there in `views` alterations, neighbors of one another.
    """
    learned = learned_clips(Path(data))
    generator = torch.Generator().manual_seed(int(seed))
    altered = [alter(learned.features, generator) for _ in range(int(views))]
    rows = torch.stack([standardized(view) for view in altered], dim=1).flatten(0, 1)
    return Samples({"sound": rows}, learned.labels.repeat_interleave(len(altered))), unseen(data=data)


def unseen(*, data: str) -> Samples:
    """Return clips by speakers that the network has not learned from.

    Row i is of range i modulo 5 of the places, so that folds taken like that hardly share a speaker.
    """
    clips = unseen_clips(Path(data))
    order = torch.argsort(clips.places, stable=True)
    size = len(order) // FOLDS
    ranges = order[: size * FOLDS].view(FOLDS, size)
    shuffled = ranges[:, torch.randperm(size, generator=torch.Generator().manual_seed(0))]
    clips = clips.where(shuffled.T.flatten())
    return Samples({"sound": standardized(clips.features)}, clips.labels)


def learned_clips(folder: Path) -> Clips:
    """Return what the network and the predictors learn from."""
    clips = load_clips(folder)
    return clips.where(clips.places < LEARNED)


def unseen_clips(folder: Path) -> Clips:
    """Return what nothing learns from."""
    clips = load_clips(folder)
    return clips.where(clips.places >= UNSEEN)


def load_clips(folder: Path) -> Clips:
    """Read all clips; of those that are there twice, the first. Raises `ConfigError` for a file of another kind."""
    try:
        with np.load(folder / FILE) as arrays:
            stored, labels = arrays["x"], arrays["y"].astype(np.int64)
            low, high = float(arrays["lo"]), float(arrays["hi"])
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{folder / FILE} cannot be read: {error}; it needs the arrays x, y, lo and hi (README)"
        ) from error
    if stored.dtype != np.uint8 or stored.shape != (len(labels), BANDS, FRAMES):
        raise ConfigError(f"{folder / FILE}: x is {stored.dtype} {stored.shape}, not uint8 (N, {BANDS}, {FRAMES})")
    places = np.empty(len(labels), dtype=np.float32)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        places[rows] = np.arange(len(rows)) / len(rows)
    first = np.sort(np.unique(stored.reshape(len(stored), -1), axis=0, return_index=True)[1])
    features = torch.from_numpy(stored[first]).float() / 255 * (high - low) + low
    return Clips(features, torch.from_numpy(labels[first]), torch.from_numpy(places[first]))


def alter(features: Tensor, generator: torch.Generator) -> Tensor:
    """Return clips `(N, 40, 98)` moved in time, louder or softer, tilted, with noise and some bands and frames hidden.

    SpecAugment (Park et al. 2019) with one mask a side; what is hidden takes the mean of all features.
    """
    n = len(features)

    def swing(reach: float) -> Tensor:
        return (2 * torch.rand((n, 1, 1), generator=generator) - 1) * reach

    slope = torch.linspace(-1, 1, BANDS).view(1, BANDS, 1)
    found = _moved(features, generator) + swing(GAIN) + swing(TILT) * slope
    found = found + NOISE * torch.randn(features.shape, generator=generator)
    hidden = _mask(n, BANDS, MOST_BANDS, generator)[:, :, None] | _mask(n, FRAMES, MOST_FRAMES, generator)[:, None]
    return torch.where(hidden, torch.tensor(MEAN), found)


def standardized(features: Tensor) -> Tensor:
    """Turn `(N, 40, 98)` logarithms into the network's input `(N, 1, 40, 98) float32`."""
    return ((features - MEAN) / STD).unsqueeze(1)


def _moved(features: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to 120 ms; the first or last frame fills the gap."""
    moves = torch.randint(-SHIFT, SHIFT + 1, (len(features), 1), generator=generator)
    frames = (torch.arange(FRAMES) + moves).clamp(0, FRAMES - 1)
    return features.gather(2, frames[:, None, :].expand(-1, BANDS, -1))


def _mask(rows: int, length: int, most: int, generator: torch.Generator) -> Tensor:
    """Return `(rows, length) bool`: a run of up to `most` that is true."""
    size = torch.rand((rows, 1), generator=generator) * most
    start = torch.rand((rows, 1), generator=generator) * (length - size)
    places = torch.arange(length)
    return (places >= start) & (places < start + size)
