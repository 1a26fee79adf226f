"""Heads as `build` made them, for traffic whose classes come more or less often than in what they learned from.

If inputs of a class look as before and only the shares of classes differ, a classifier's probabilities are right again
once each is multiplied by how many times more often its class comes (Saerens et al. 2002, equation 2.4). Those of a
network are too sure, or not sure enough, by one factor for all, its temperature (Guo et al. 2017, section 4.2), which
the kept rows tell. So one number is found on thousands of rows, where a lesson finds thousands on fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latebind.learned.head import Head, HeadFunction
from latebind.learned.stored import Rows

TEMPERATURES = np.geomspace(0.25, 16.0, 85)
RAREST = 0.02  # of the share that a class had: no class is given up, whatever came lately


@dataclass(frozen=True, slots=True)
class Prior:
    """The shares of classes `(classes,)` that heads have learned from, and the temperature of each by lookup."""

    shares: Tensor
    temperatures: Mapping[str, float]

    @classmethod
    def of(cls, heads: Mapping[str, Head], lessons: Rows) -> Self:
        """Find them on rows that the predictors have not seen."""
        classes = next(iter(heads.values())).classes
        counts = torch.bincount(lessons.classes, minlength=classes) + 1.0
        found = {
            name: _temperature(head, lessons.features[name], lessons.classes)
            for name, head in heads.items()
            if not head.sure
        }
        return cls(counts / counts.sum(), found)

    def shifted(self, heads: Mapping[str, Head], mix: Mapping[int, float]) -> dict[str, Head]:
        """Return the heads for traffic with these shares of classes; one that is always sure stays as it is.

        Their own log-odds are the scores: a selector has learned from answers without the shift.
        """
        shares = torch.zeros_like(self.shares)
        for answer, share in mix.items():
            shares[answer] = share
        times = (shares / self.shares).clamp(min=RAREST).log()
        return {
            name: replace(head, answer_bias=head.answer_bias + self.temperatures[name] * times).without_selector()
            if name in self.temperatures
            else head
            for name, head in heads.items()
        }


@torch.no_grad()
def _temperature(head: Head, features: Tensor, classes: Tensor) -> float:
    """Return by how much answers have to be divided to be the likeliest log-probabilities, but for a constant."""
    answers = torch.from_numpy(HeadFunction(head)(features.float().numpy())[0])
    losses = [float(functional.cross_entropy(answers / temperature, classes)) for temperature in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])
