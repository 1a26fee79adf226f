"""Whether rows that `build` kept can speak for the traffic: do the lookups know as much of one as of the other?

Frames of a camera are not the pictures that a network was trained on: a version shown on those errs on these, and is
found out only after hundreds of samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from latebind.learned.head import Head, HeadFunction
from latebind.learned.stored import Rows

FEWEST = 60  # samples of the traffic
MOST_LESS = 0.15  # of the samples, that lookups may answer less often like the base model than they should


@dataclass(frozen=True, slots=True)
class Kept:
    """How well lookups know kept rows: `shares[name][c]` of those of class c they answer like the base model."""

    heads: Mapping[str, Head]
    shares: Mapping[str, Tensor]

    @classmethod
    def of(cls, rows: Rows, heads: Mapping[str, Head]) -> Self:
        """Ask the lookups of `heads`, by name, about rows that have their features."""
        shares = {}
        for name, head in heads.items():
            there = torch.bincount(rows.classes, minlength=head.classes).clamp(min=1)
            shares[name] = torch.zeros(head.classes).index_add_(0, rows.classes, _right(rows, name, head)) / there
        return cls(heads, shares)

    def speak_for(self, traffic: Rows) -> bool:
        """Tell whether samples of the traffic are known about as well as kept rows of the same classes.

        With few samples the answer is yes.
        """
        if len(traffic.classes) < FEWEST:
            return True
        less = [self.shares[name][traffic.classes] - _right(traffic, name, head) for name, head in self.heads.items()]
        return all(float(one.mean()) <= MOST_LESS for one in less)


def _right(rows: Rows, name: str, head: Head) -> Tensor:
    answers, _ = HeadFunction(head)(rows.features[name].float().numpy())
    return (torch.from_numpy(answers.argmax(axis=1)) == rows.classes).float()
