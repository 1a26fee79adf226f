"""The head of a lookup: a last layer and a selector on features. It stays outside of what is compiled.

So new heads (`adaptation`) take effect between two batches, with nothing to compile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

SELECTOR_HIDDEN = 64
LEAST_DOUBT = 1e-7  # that an answer is another: what float32 can tell from none


class Selector(nn.Module):
    """From answers `(B, classes)` to `(B,)`: the log-odds that the base model answers the same (GATI, section 3.1).

    It sees what the predictor says and nothing else; fed with the predictor's features it learned its training rows.
    It learns what to add to the predictor's own odds: from nothing it does not get as far on a few thousand rows.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * classes, SELECTOR_HIDDEN)
        self.score = nn.Linear(SELECTOR_HIDDEN, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, answers: Tensor) -> Tensor:
        """Return the score of each row."""
        return _scores(answers, self.hidden.weight, self.hidden.bias, self.score.weight, self.score.bias)


@dataclass(frozen=True, slots=True)
class Head:
    """Six small tensors, float32: `answer_*` `(classes, features)` and the two layers of the selector."""

    answer_weight: Tensor
    answer_bias: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    score_weight: Tensor
    score_bias: Tensor

    @classmethod
    def of(cls, answer: nn.Linear, selector: Selector) -> Self:
        """Return a copy of these layers as a head."""
        layers = (answer, selector.hidden, selector.score)
        tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        return cls(*(tensor.detach().float().clone() for tensor in tensors))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the head of tensors by name; raises `ValueError` unless they are one head."""
        if set(tensors) != set(cls.__slots__) or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
            raise ValueError(f"a head has float32 tensors {', '.join(cls.__slots__)}, these are {', '.join(tensors)}")
        found = cls(**tensors)
        classes, width = found.classes, found.width
        wanted = [(classes, width), (classes,), (SELECTOR_HIDDEN, 2 * classes), (SELECTOR_HIDDEN,)]
        shapes = [tuple(tensor.shape) for tensor in found.tensors().values()]
        if shapes != [*wanted, (1, SELECTOR_HIDDEN), (1,)]:
            raise ValueError(f"tensors of shapes {shapes} make no head")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("a head has numbers that are not finite")
        return found

    @property
    def classes(self) -> int:
        """How many classes it answers with."""
        return self.answer_weight.shape[0]

    @property
    def width(self) -> int:
        """How many features it takes."""
        return self.answer_weight.shape[-1]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers `(B, classes)` and scores `(B,)`, float32, for features `(B, width)`."""
        answers = functional.linear(features, self.answer_weight, self.answer_bias)
        return answers, _scores(answers, self.hidden_weight, self.hidden_bias, self.score_weight, self.score_bias)


def _scores(answers: Tensor, weight: Tensor, bias: Tensor, score: Tensor, offset: Tensor) -> Tensor:
    logs = functional.log_softmax(answers, dim=1)
    hidden = functional.relu(functional.linear(torch.cat([logs.exp(), logs], dim=1), weight, bias))
    highest = logs.amax(dim=1)
    odds = highest - torch.log((-torch.expm1(highest)).clamp(min=LEAST_DOUBT))
    return odds + functional.linear(hidden, score, offset)[:, 0]
