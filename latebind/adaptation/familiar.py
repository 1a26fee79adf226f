"""Whether what comes looks like what came before: a guard for changes that no class tells and fidelity tells late.

Brighter pictures or a microphone further away move the mean and the spread of an input's numbers far from those of the
samples of late, and a few dozen samples show it; that fidelity fell from 0.98 to 0.95 takes hundreds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FEWEST = 150  # samples to compare with
SHRINK = 10  # samples of all classes that each class is taken to have besides its own
STRANGE = 0.05  # the share of samples like those before that are called strange


def looks(inputs: Sequence[Tensor]) -> Tensor:
    """Return `(N, 2 inputs) float32`: mean and spread of the numbers of each row of each input."""
    rows = [tensor.reshape(len(tensor), -1).float() for tensor in inputs]  # an input may be one number
    return torch.cat([torch.stack([row.mean(dim=1), row.std(dim=1, correction=0)], dim=1) for row in rows], dim=1)


@dataclass(frozen=True, slots=True)
class Familiar:
    """What samples looked like: by class means `(classes, k)`, of all a spread `(k,)` and how far a strange one is.

    By class, because another mix of classes is not a change of looks.
    """

    means: Tensor
    spread: Tensor
    far: float

    @classmethod
    def of(cls, seen: Tensor, answers: Tensor, *, classes: int) -> Self | None:
        """Learn from looks `(N, k)` of samples and the base model's `answers` `(N,) int64`; None for too few."""
        if len(seen) < FEWEST:
            return None
        count = torch.bincount(answers, minlength=classes)[:, None]
        sums = torch.zeros(classes, seen.shape[1]).index_add_(0, answers, seen)
        means = (sums + SHRINK * seen.mean(dim=0)) / (count + SHRINK)
        spread = (seen - means[answers]).std(dim=0).clamp(min=1e-6)
        distances = _distances(seen, answers, means, spread)
        return cls(means, spread, float(distances.quantile(1.0 - STRANGE)))

    def strange(self, seen: Tensor, answers: Tensor) -> Tensor:
        """Return `(N,) bool` for looks `(N, k)` and the base model's answers."""
        return _distances(seen, answers, self.means, self.spread) > self.far


def _distances(seen: Tensor, answers: Tensor, means: Tensor, spread: Tensor) -> Tensor:
    return (((seen - means[answers]) / spread) ** 2).mean(dim=1)
