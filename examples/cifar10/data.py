"""CIFAR-10 images from a folder of lossless sheets, and samples for learned caches that are as hard as unseen images.

A network is right on nearly all of its own training images, so caches fitted to those believe that it always is. Here
training images are altered (shifted, turned, recolored, blended, partly covered) just so strongly that the network's
accuracy on them falls to what is known of it on unseen images: "difficulty matched to the stated accuracy".
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from examples.cifar10 import model as networks
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

SHEET_ROWS, SHEET_COLUMNS, SIDE = 25, 40, 32
TRAIN_SHEETS, TEST_SHEETS = 35, 5
HELD_OUT = 7_000  # train images kept for calibration, the last of them

# Top-1 on the whole test set as published with the weights.
STATED_ACCURACY = {"resnet20": 0.9173, "resnet32": 0.9263, "resnet44": 0.9311, "resnet56": 0.9339}

MATCH_IMAGES, MATCH_STEPS = 1_000, 4
WEAKEST, STRONGEST = 0.3, 1.5

Alteration = Callable[[Tensor, float, torch.Generator], Tensor]


def samples(
    *,
    data: str,
    weights: str,
    network: str = "resnet56",
    accuracy: str = "",
    views: str = "3",
    seed: str = "0",
    limit: str = "",
    calibrate_on: str = "altered",
) -> tuple[Samples, Samples]:
    """Return samples to fit learned caches, from the training images only, and samples to calibrate them.

    `calibrate_on` "altered" calibrates on training images too, altered to be as hard as unseen ones; "test" takes the
    test images as they are, so the rest of the training images is left to fit. Nothing is ever fitted to test images.

    `data` is the folder of sheets, `weights` the network's safetensors file, `accuracy` what is known of it on unseen
    images (else the published figure). Each image to fit is there in `views` views: one mildly shifted and flipped, the
    others altered. Each image to calibrate is there once in each of three worlds, altered in another way in each.
    `limit` takes that many training images only. The same `seed` gives the same samples.
    """
    pixels, labels = load_images(Path(data), "train", limit=int(limit) if limit else None)
    net = getattr(networks, network)()
    networks.load_weights(net, Path(weights))
    goal = float(accuracy) if accuracy else STATED_ACCURACY[network]
    if calibrate_on not in {"altered", "test"}:
        raise ConfigError(f"calibrate_on {calibrate_on!r}: take altered or test")
    held_out = min(HELD_OUT, len(pixels) // 5) if calibrate_on == "altered" else MATCH_IMAGES
    generator = torch.Generator().manual_seed(int(seed))
    hard, held = (pixels[-held_out:], labels[-held_out:]), pixels[-held_out:]
    strengths = {
        name: matched_strength(net, *hard, alteration, accuracy=goal, seed=int(seed))
        for name, alteration in WORLDS.items()
    }
    if calibrate_on == "altered":
        calibrate = [WORLDS[name](scaled(held), strength, generator) for name, strength in strengths.items()]
        worlds = torch.arange(len(WORLDS)).repeat_interleave(held_out)
        inputs = torch.cat([normalized(view) for view in calibrate])
        held_out_samples = Samples((inputs,), labels_of(hard, len(WORLDS)), worlds)
    else:
        held_out_samples = unseen(data=data)
    pixels, labels = pixels[:-held_out], labels[:-held_out]
    fit = [shift_and_flip(scaled(pixels), generator)]
    fit += [mixed(scaled(pixels), strengths["mixed"], generator) for _ in range(int(views) - 1)]
    # the views of an image are neighbors
    rows = torch.stack([normalized(view) for view in fit], dim=1).flatten(0, 1)
    return Samples((rows,), labels.repeat_interleave(len(fit))), held_out_samples


def unseen(*, data: str, limit: str = "", name: str = "image") -> Samples:
    """Return the test images and labels as rows for the input `name`."""
    inputs, labels = load_test(Path(data), limit=int(limit) if limit else None)
    return Samples({name: inputs}, labels)


def load_images(folder: Path, split: str, *, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Return pixels `(N, 32, 32, 3) uint8` and labels `(N,) int64` of the split "train" or "test"."""
    sheets = {"train": TRAIN_SHEETS, "test": TEST_SHEETS}[split]
    if limit is not None:
        sheets = min(sheets, -(-limit // (SHEET_ROWS * SHEET_COLUMNS)))
    pixels = torch.cat([_read_sheet(folder / f"{split}_{number:02d}.webp") for number in range(sheets)])
    labels = torch.tensor(json.loads((folder / f"{split}_labels.json").read_text(encoding="utf-8")))
    return pixels[:limit], labels[: len(pixels)][:limit]


def load_test(folder: Path, *, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the test images as network input `(N, 3, 32, 32) float32`, and their labels. To measure with, only."""
    pixels, labels = load_images(folder, "test", limit=limit)
    return networks.normalize(pixels), labels


def matched_strength(
    network: nn.Module, pixels: Tensor, labels: Tensor, alter: Alteration, *, accuracy: float, seed: int
) -> float:
    """Return how strong `alter` must be for the network to be right on this share of the (training) images."""
    images, truth = scaled(pixels[:MATCH_IMAGES]), labels[:MATCH_IMAGES]
    low, high = WEAKEST, STRONGEST
    for _ in range(MATCH_STEPS):
        strength = (low + high) / 2
        altered = alter(images, strength, torch.Generator().manual_seed(seed))
        if _accuracy(network, normalized(altered), truth) > accuracy:
            low = strength
        else:
            high = strength
    return (low + high) / 2


def shift_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to 4 pixels, filling with black, and mirror every other image: how such networks are trained."""
    n = len(images)
    flipped = torch.where(_draw(n, generator) < 0.5, images.flip(3), images)
    padded = functional.pad(flipped, (4, 4, 4, 4))
    corner = torch.randint(0, 9, (n, 2), generator=generator)
    line = torch.arange(SIDE)
    down = (corner[:, :1] + line)[:, None, :, None]
    right = (corner[:, 1:] + line)[:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(3)[None, :, None, None], down, right]


def turned(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Turn, scale, shear and shift each image a little; edges are mirrored."""
    n = len(images)

    def swing(reach: float) -> Tensor:
        return (2 * _draw(n, generator).flatten() - 1) * reach * strength

    angle, scale, shear = swing(0.35), 1 + swing(0.25), swing(0.2)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    first = torch.stack([scale * cosine, shear - sine, swing(0.25)], dim=1)
    second = torch.stack([sine, scale * cosine, swing(0.25)], dim=1)
    grid = functional.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def recolored(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and tint."""
    n = len(images)

    def swing(reach: float, channels: int = 1) -> Tensor:
        return (2 * _draw(n, generator, channels) - 1) * reach * strength

    found = images * (1 + swing(0.4)) + swing(0.2)
    mean = found.mean(dim=(1, 2, 3), keepdim=True)
    found = (found - mean) * (1 + swing(0.5)) + mean
    grey = found.mean(dim=1, keepdim=True)
    return ((found - grey) * (1 + swing(0.6)) + grey + swing(0.06, 3)).clamp(0, 1)


def blended(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Let another image shine through, by up to 0.4 x `strength`; the label stays that of the first."""
    share = _draw(len(images), generator) * min(0.4 * strength, 0.5)
    return images * (1 - share) + images[torch.randperm(len(images), generator=generator)] * share


def covered(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Cover a square of up to 16 x `strength` pixels a side with grey."""
    n = len(images)
    half = _draw(n, generator) * 8 * strength
    across, down = _draw(n, generator) * SIDE, _draw(n, generator) * SIDE
    line = torch.arange(SIDE) + 0.5
    hidden = ((line.view(1, 1, 1, -1) - across).abs() < half) & ((line.view(1, 1, -1, 1) - down).abs() < half)
    return torch.where(hidden, torch.tensor(0.47), images)


def mixed(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """All alterations, each at half strength."""
    half = strength / 2
    found = turned(shift_and_flip(images, generator), half, generator)
    return covered(blended(recolored(found, half, generator), half, generator), half, generator)


def shifted_and_turned(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Flip and turn."""
    return turned(shift_and_flip(images, generator), strength, generator)


def shifted_and_covered(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Flip, shift and cover."""
    return covered(shift_and_flip(images, generator), strength, generator)


WORLDS: dict[str, Alteration] = {
    "mixed": mixed,
    "turned": shifted_and_turned,
    "covered": shifted_and_covered,
}


def scaled(pixels: Tensor) -> Tensor:
    """Turn `(N, 32, 32, 3) uint8` into `(N, 3, 32, 32) float32` from 0 to 1."""
    return pixels.permute(0, 3, 1, 2).float() / 255


def normalized(images: Tensor) -> Tensor:
    """Turn images from 0 to 1 into the network's input."""
    return (images - torch.tensor(networks.MEAN).view(1, 3, 1, 1)) / torch.tensor(networks.STD).view(1, 3, 1, 1)


def labels_of(images: tuple[Tensor, Tensor], times: int) -> Tensor:
    """Return the labels of labeled images, `times` over."""
    return images[1].repeat(times)


def _read_sheet(path: Path) -> Tensor:
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"))
    cells = sheet.reshape(SHEET_ROWS, SIDE, SHEET_COLUMNS, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return torch.from_numpy(np.ascontiguousarray(cells).reshape(-1, SIDE, SIDE, 3))


@torch.inference_mode()
def _accuracy(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    answers = torch.cat([network(part).argmax(dim=1) for part in torch.split(inputs, 16)])
    return float((answers == labels).float().mean())


def _draw(n: int, generator: torch.Generator, channels: int = 1) -> Tensor:
    return torch.rand((n, channels, 1, 1), generator=generator)
