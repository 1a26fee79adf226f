"""Whether rows that `build` kept can speak for the traffic: do the lookups know as much of one as of the other?

Frames of a camera are not the pictures that a network was trained on: a version shown on those errs on these, and is
found out only after hundreds of samples. Where lookups do know such frames, they may be too seldom sure of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from latebind.learned.head import Head, HeadFunction
from latebind.learned.stored import Rows

FEWEST = 30  # samples of the traffic
MOST_LESS = 0.15  # of the samples, that lookups may answer less often like the base model than they should
MOST_LESS_SURE = 0.3  # that may leave less often than they should


@dataclass(frozen=True, slots=True)
class Known:
    """Of each class, the share of rows that a lookup answers like the base model, and the share it is sure of."""

    right: Tensor
    sure: Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """How well lookups, by name with their thresholds, know rows that `build` kept."""

    lookups: Mapping[str, tuple[Head, float]]
    known: Mapping[str, Known]

    @classmethod
    def of(cls, rows: Rows, lookups: Mapping[str, tuple[Head, float]]) -> Self:
        """Ask the lookups about rows that have their features."""
        known = {}
        for name, (head, threshold) in lookups.items():
            there = torch.bincount(rows.classes, minlength=head.classes).clamp(min=1)
            shares = [
                torch.zeros(head.classes).index_add_(0, rows.classes, each) / there
                for each in _asked(rows, name, head, threshold)
            ]
            known[name] = Known(*shares)
        return cls(lookups, known)

    def speak_for(self, traffic: Rows) -> bool:
        """Tell whether samples of the traffic are known about as well as kept rows of the same classes.

        With few samples the answer is yes.
        """
        if len(traffic.classes) < FEWEST:
            return True
        return all(self._knows(name, traffic) for name in self.lookups)

    def _knows(self, name: str, traffic: Rows) -> bool:
        right, sure = _asked(traffic, name, *self.lookups[name])
        known, classes = self.known[name], traffic.classes
        less, less_sure = known.right[classes] - right, known.sure[classes] - sure
        return not (_clearly(less, above=MOST_LESS) or _clearly(less_sure, above=MOST_LESS_SURE))


def _clearly(less: Tensor, *, above: float) -> bool:
    """Tell whether a mean is above a limit by more than its standard error."""
    return float(less.mean() - less.std() / len(less) ** 0.5) > above


def _asked(rows: Rows, name: str, head: Head, threshold: float) -> tuple[Tensor, Tensor]:
    """Return for each row 1 if the lookup answers like the base model, and 1 if it is sure."""
    answers, scores = HeadFunction(head)(rows.features[name].float().numpy())
    right = torch.from_numpy(answers.argmax(axis=1)) == rows.classes
    return right.float(), torch.from_numpy(scores >= threshold).float()
