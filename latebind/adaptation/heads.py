"""How heads come to fit the traffic: shifted to other shares of classes while inputs look as before, else taught."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.learned.head import Head, HeadFunction
from latebind.learned.stored import Rows

TEMPERATURES = np.geomspace(0.25, 16.0, 85)
RAREST = 0.02  # of the share that a class had: no class is given up, whatever came lately
# of the loss, `learned.train.distillation_loss`: a head learns for 150 steps, a network for thousands
TEMPERATURE, DISTILLATION = 2.0, 0.5
STEPS, BATCH = 150, 128
RATE, DECAY = 1e-2, 1e-2
MEMORIES = 0.9, 0.999  # of AdamW (Loshchilov and Hutter 2019): of the gradient and of its square
TINY = 1e-8
BESIDE = 64  # units of the hidden layer beside the layer to answers


@dataclass(frozen=True, slots=True)
class Prior:
    """The shares of classes `(classes,)` that heads have learned from, and the temperature of each by lookup.

    If inputs of a class look as before and only the shares of classes differ, a classifier's probabilities are right
    again once each is multiplied by how many times more often its class comes (Saerens et al. 2002, equation 2.4).
    Those of a network are too sure, or not sure enough, by one factor for all, its temperature (Guo et al. 2017,
    section 4.2), which the kept rows tell. So one number is found on thousands of rows, where a lesson finds thousands
    on fewer: of a stream by Zipf's law 0.844 could leave with shifted heads, 0.794 as built, 0.781 taught.
    """

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


class Layers:
    """The layers of a head while they learn, on features of mean 0 and variance 1, for one rate fits those of all.

    The loss and AdamW are derived by hand: a step on 128 rows computes for a fifth of a millisecond, and autograd,
    hooks and an optimizer took six times as long around it. Layers go on from the head as it is; where it has no hidden
    layer beside the layer to answers, one begins silent.
    """

    def __init__(self, head: Head, features: Tensor, generator: torch.Generator) -> None:
        self._classes, width = head.classes, head.width
        self._mean, self._spread = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-3)
        self._features = (features - self._mean) / self._spread
        if len(head.beside_bias):
            beside, bias = head.beside_weight * self._spread, head.beside_bias + head.beside_weight @ self._mean
            answer = head.beside_answer
        else:
            beside = torch.randn(BESIDE, width, generator=generator) / width**0.5
            bias, answer = torch.zeros(BESIDE), torch.zeros(self._classes, BESIDE)
        first = torch.cat([head.answer_weight * self._spread, beside])
        first_bias = torch.cat([head.answer_bias + head.answer_weight @ self._mean, bias])
        parts = (first, first_bias, answer)
        self._flat = torch.cat([part.flatten() for part in parts])
        self._slope, self._past, self._past_squares = (torch.zeros_like(self._flat) for _ in range(3))
        self._first, self._bias, self._answer = _views(self._flat, parts)
        self._of_first, self._of_bias, self._of_answer = _views(self._slope, parts)

    @torch.no_grad()
    def learn(self, answers: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> None:
        """Learn to give the base model's `answers` `(N, classes)` to the features given."""
        soft = functional.softmax(answers / TEMPERATURE, dim=1)
        hard = functional.one_hot(answers.argmax(dim=1), self._classes).float()
        drawn = torch.randint(len(answers), (steps, BATCH), generator=generator)
        for step, rows in enumerate(drawn):
            self._slopes(self._features[rows], soft[rows], hard[rows])
            self._step(step, RATE * (1.0 - step / steps))

    def _slopes(self, features: Tensor, soft: Tensor, hard: Tensor) -> None:
        """Derive `distillation_loss` by each number that is learned."""
        both = torch.addmm(self._bias, features, self._first.t())
        hidden = both[:, self._classes :].clamp_(min=0.0)
        said = torch.addmm(both[:, : self._classes], hidden, self._answer.t())
        by_said = functional.softmax(said / TEMPERATURE, dim=1).sub_(soft).mul_(DISTILLATION * TEMPERATURE)
        by_said.add_(functional.softmax(said, dim=1).sub_(hard), alpha=1.0 - DISTILLATION).div_(len(features))
        by_hidden = (by_said @ self._answer).mul_(hidden > 0.0)
        by_both = torch.cat([by_said, by_hidden], dim=1)
        torch.mm(by_said.t(), hidden, out=self._of_answer)
        torch.mm(by_both.t(), features, out=self._of_first)
        torch.sum(by_both, dim=0, out=self._of_bias)

    def _step(self, step: int, rate: float) -> None:
        past, squares = MEMORIES
        self._past.lerp_(self._slope, 1.0 - past)
        self._past_squares.mul_(squares).addcmul_(self._slope, self._slope, value=1.0 - squares)
        spread = self._past_squares.sqrt().div_((1.0 - squares ** (step + 1)) ** 0.5).add_(TINY)
        self._flat.mul_(1.0 - rate * DECAY).addcdiv_(self._past, spread, value=-rate / (1.0 - past ** (step + 1)))

    @torch.no_grad()
    def head(self) -> Head:
        """Return a head for features as they come; its own odds say how sure it is, a selector gained nothing here."""
        first = self._first / self._spread
        bias = self._bias - first @ self._mean
        weight, beside = first[: self._classes], first[self._classes :]
        answer = nn.Linear(weight.shape[1], weight.shape[0])
        answer.weight.copy_(weight)
        answer.bias.copy_(bias[: self._classes])
        return Head.of(answer, beside=(beside, bias[self._classes :], self._answer))


def _views(flat: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return pieces of `flat` in the shapes of `parts`."""
    pieces = torch.split(flat, [part.numel() for part in parts])
    return tuple(piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True))
