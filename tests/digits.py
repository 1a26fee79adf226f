"""A small real classifier of handwritten digits as a model directory, and its images."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from latebind.learned.build import build_caches
from latebind.learned.metadata import LIST
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples
from latebind.repository.directory import ModelDirectory
from tests.building import build_stages

FIT, CALIBRATE = 900, 600  # of 1,797 images; the rest stays unseen


class Digits(nn.Module):
    """A small network that knows digits, and behind it wide convolutions that only take time: each hands on its input.

    So a lookup costs far less than what it saves, on any machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 128, 3, padding=1)
        self.slow = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in range(5))
        for layer in self.slow:
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            nn.init.dirac_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.linear = nn.Linear(128, 10)

    def known(self, image: Tensor) -> Tensor:
        """The part that learns, `(B, 1, 8, 8) float32` to `(B, 128, 8, 8)`."""
        return functional.relu(self.second(functional.relu(self.first(image))))

    def head(self, features: Tensor) -> Tensor:
        """Logits `(B, 10)`."""
        logits: Tensor = self.linear(features.amax(dim=(2, 3)))
        return logits

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 1, 8, 8) float32` to `(B, 10) float32`."""
        image = self.known(image)
        for layer in self.slow:
            image = functional.relu(layer(image))
        return self.head(image)


@dataclass(frozen=True)
class Built:
    """The report on a model with learned caches, and images by part."""

    report: CacheReport

    @property
    def directory(self) -> ModelDirectory:
        return self.report.directory

    @property
    def fit(self) -> Samples:
        return samples(0, FIT)

    @property
    def calibrate(self) -> Samples:
        return samples(FIT, FIT + CALIBRATE)

    @property
    def rows(self) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
        """The images to calibrate with and their labels, as benchmarks take them."""
        images, labels = digits()
        part = slice(FIT, FIT + CALIBRATE)
        return {"image": images[part].numpy()}, labels[part].numpy()

    @property
    def unseen(self) -> Tensor:
        images, _ = digits()
        return images[FIT + CALIBRATE :]


@cache
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # takes seconds to import, and most files of tests need no digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16, torch.tensor(labels)[order]


def samples(first: int, end: int) -> Samples:
    images, labels = digits()
    return Samples({"image": images[first:end]}, labels[first:end])


def trained(images: Tensor, labels: Tensor) -> nn.Module:
    torch.manual_seed(0)
    module = Digits()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(6):
        for rows in torch.split(torch.randperm(len(images)), 50):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module.head(module.known(images[rows])), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()


def earlier(directory: ModelDirectory, folder: Path) -> ModelDirectory:
    """Return a copy in `folder` as it was built before a promise told of how many answers it is."""
    files = {name: directory.read(name) for name in directory.files}
    caches = json.loads(files[LIST])
    del caches["answers"]
    return ModelDirectory.create(folder / "earlier", files | {LIST: json.dumps(caches).encode()})


def build_digits(folder: Path, *, candidates: int, kinds: Sequence[str] = ()) -> Built:
    """Train, build and calibrate in `folder`; takes seconds, more for more candidates."""
    torch.set_num_threads(1)
    images, labels = digits()
    module = trained(images[:FIT], labels[:FIT])
    directory = build_stages(module, {"image": images[:8]}, folder / "1", name="digits", max_batch=4).directory
    report = build_caches(
        directory,
        samples(0, FIT),
        samples(FIT, FIT + CALIBRATE),
        fidelity=0.9,
        confidence=0.9,
        candidates=candidates,
        kinds=kinds,
        presentations=12_000,
    )
    return Built(report)
