"""What is asked about pictures: the classes and their two families, the networks, and pictures for each purpose.

Of the pictures some are learned from, others measure how often each network is right, others calibrate the learned
caches of the gate, and the rest, for tests, are seen by nothing before it is served.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from examples.cifar10 import data as cifar10
from examples.digits import model as digits
from examples.query import networks
from latebind.learned.samples import Samples

GATE = "gate"
SIZES = ("small", "medium", "large")
QUICKER = 3  # times less is learned where somebody will not wait
INPUT = "image"

Alteration = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Inputs `(N, C, H, W) float32` as networks take them, and their classes `(N,) int64`."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Pictures":
        """Return the pictures of these numbers, or those for which a mask `(N,) bool` holds."""
        return Pictures(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True, slots=True)
class Scene:
    """A query over pictures. `families` are classes by name: the gate says which of them a picture belongs to.

    `networks` and `epochs` are by size, with those of the gate. `alter` makes other views of pictures to learn from.
    The gate is cut into stages of `stage_seconds` or more; its learned caches see so many `lessons` and are to answer
    as it does on a share `fidelity`: who is sent the wrong way gets a wrong answer, however accurate the rest is.
    """

    query: str
    classes: tuple[str, ...]
    families: Mapping[str, tuple[int, ...]]
    networks: Mapping[str, Callable[[], nn.Module]]
    epochs: Mapping[str, int]
    alter: Alteration
    stage_seconds: float
    lessons: int
    fidelity: float
    learned: Pictures
    measured: Pictures
    calibrated: Pictures
    test: Pictures

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models: the gate's, then family-size."""
        return (GATE, *(f"{family}-{size}" for family in self.families for size in SIZES))

    def size_of(self, model: str) -> str:
        """Return which of the networks a model is."""
        return model.rpartition("-")[2]

    def about(self, model: str, pictures: Pictures) -> Pictures:
        """Return what a model is to tell of pictures: the gate the family of each, others the class within theirs."""
        if model == GATE:
            return Pictures(pictures.inputs, self.family_of(pictures.labels))
        family = torch.tensor(self.families[model.rpartition("-")[0]])
        return pictures.take(torch.isin(pictures.labels, family))

    def family_of(self, labels: Tensor) -> Tensor:
        """Return the number of each class's family."""
        families = torch.zeros(len(self.classes), dtype=torch.int64)
        for number, classes in enumerate(self.families.values()):
            families[list(classes)] = number
        return families[labels]


def scene(data: Path | None) -> Scene:
    """Return the scene of a folder of CIFAR-10 (`examples/cifar10`), or of handwritten digits where there is none."""
    return of_digits() if data is None else of_pictures(data)


def shortened(pictures: Scene) -> Scene:
    """Return the same scene with a third of the epochs and of the lessons; of what is trained at least one epoch."""
    epochs = {size: max(1, round(count / QUICKER)) for size, count in pictures.epochs.items()}
    return replace(pictures, epochs=epochs, lessons=pictures.lessons // QUICKER)


def unseen(*, data: str = "", limit: str = "") -> Samples:
    """Return the pictures for tests and their classes, as rows of a query. To measure with, only."""
    test = scene(Path(data) if data else None).test
    rows = slice(int(limit) if limit else None)
    return Samples({INPUT: test.inputs[rows]}, test.labels[rows])


def of_pictures(data: Path) -> Scene:
    """Return vehicles and animals of CIFAR-10."""
    pixels, labels = cifar10.load_images(data, "train")
    every = Pictures(cifar10.normalized(cifar10.scaled(pixels)), labels)
    learned, measured, calibrated = _parts(every, 29 / 35, 32 / 35)
    return Scene(
        query="picture",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        families={"vehicles": (0, 1, 8, 9), "animals": (2, 3, 4, 5, 6, 7)},
        networks={
            GATE: networks.gate,
            "small": networks.small,
            "medium": networks.medium,
            "large": networks.large,
        },
        epochs={GATE: 4, "small": 6, "medium": 6, "large": 6},
        alter=cifar10.shift_and_flip,
        stage_seconds=4e-4,
        lessons=120_000,
        fidelity=0.985,
        learned=learned,
        measured=measured,
        calibrated=calibrated,
        test=Pictures(*cifar10.load_test(data)),
    )


def of_digits() -> Scene:
    """Return low and high digits of scikit-learn."""
    images, labels = digits.load_images()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learned, measured, calibrated, test = _parts(Pictures(images[order], labels[order]), 0.45, 0.57, 0.87)
    return Scene(
        query="digit",
        classes=tuple(map(str, range(digits.CLASSES))),
        families={"low": (0, 1, 2, 3, 4), "high": (5, 6, 7, 8, 9)},
        networks={
            GATE: networks.digits_gate,
            "small": networks.digits_small,
            "medium": networks.digits_medium,
            "large": networks.digits_large,
        },
        epochs={GATE: 12, "small": 20, "medium": 20, "large": 20},
        alter=digits.shifted,
        stage_seconds=3e-4,
        lessons=12_000,
        fidelity=0.96,
        learned=learned,
        measured=measured,
        calibrated=calibrated,
        test=test,
    )


def _parts(every: Pictures, *ends: float) -> list[Pictures]:
    """Cut pictures at these shares of them."""
    cuts = [round(end * len(every)) for end in ends]
    return [
        Pictures(inputs, labels)
        for inputs, labels in zip(every.inputs.tensor_split(cuts), every.labels.tensor_split(cuts), strict=True)
    ]
