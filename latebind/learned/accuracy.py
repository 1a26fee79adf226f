"""The accuracy of a model, measured on labelled samples when it is built: `accuracy.json` in its directory.

Queries choose among models by it. A directory without the file is of a model that was built without labels.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.program.stored import read_model
from latebind.repository.directory import ModelDirectory, json_bytes

ACCURACY = "accuracy.json"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The `share` of so many held-out `samples` that the whole network, without learned caches, answers rightly."""

    share: float
    samples: int

    def __str__(self) -> str:
        return f"{self.share:.4f} of {self.samples}"


def accuracy_of(answers: Tensor, labels: Tensor) -> Accuracy:
    """Return how often `answers` `(N, classes)` are greatest at the `labels` `(N,)`."""
    return Accuracy(float((answers.argmax(dim=1) == labels).double().mean()), len(labels))


def write_accuracy(directory: ModelDirectory, accuracy: Accuracy) -> ModelDirectory:
    """Write the accuracy into a model directory, in place of a present one."""
    return directory.write_files({ACCURACY: json_bytes(accuracy)})


def read_accuracy(directory: ModelDirectory) -> Accuracy | None:
    """Return the accuracy measured when the model was built, None without labels; raises `RepositoryError`."""
    if ACCURACY not in directory.files:
        return None
    found = directory.read_json(ACCURACY, Accuracy)
    if not 0.0 <= found.share <= 1.0 or found.samples < 1:
        raise RepositoryError(f"{directory.path / ACCURACY} has {found}, which is no share: build the model again")
    return found


def read_accuracies(directories: Iterable[ModelDirectory]) -> dict[str, float]:
    """Return the accuracies that are known, by the name of the model."""
    found = {read_model(directory).name: read_accuracy(directory) for directory in directories}
    return {name: accuracy.share for name, accuracy in found.items() if accuracy is not None}
