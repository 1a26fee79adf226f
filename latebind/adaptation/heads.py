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
from latebind.learned.train import distillation_loss

TEMPERATURES = np.geomspace(0.25, 16.0, 85)
RAREST = 0.02  # of the share that a class had: no class is given up, whatever came lately
# of the loss: a head learns for 150 steps, a network for thousands
TEMPERATURE, DISTILLATION = 2.0, 0.5
STEPS, BATCH = 150, 128
RATE, DECAY = 1e-2, 1e-2
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


def taught(head: Head, features: Tensor, answers: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Head:
    """Return the head once it has learned to give the base model's `answers` `(N, classes)` to `features`.

    It learns on features of mean 0 and variance 1, for which one rate fits all, and goes on from the head as it is;
    where that has no hidden layer beside the layer to answers, one begins silent. Its own odds say how sure it is: a
    selector gained nothing here. A lesson takes a tenth of a second; loss and AdamW derived by hand took half of that.
    """
    mean, spread = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-3)
    rows = (features - mean) / spread
    if len(head.beside_bias):
        beside, beside_bias = head.beside_weight * spread, head.beside_bias + head.beside_weight @ mean
        beside_answer = head.beside_answer.clone()
    else:
        beside = torch.randn(BESIDE, head.width, generator=generator) / head.width**0.5
        beside_bias, beside_answer = torch.zeros(BESIDE), torch.zeros(head.classes, BESIDE)
    direct, bias = head.answer_weight * spread, head.answer_bias + head.answer_weight @ mean
    layers = [nn.Parameter(layer) for layer in (direct, bias, beside, beside_bias, beside_answer)]
    optimizer = torch.optim.AdamW(layers, lr=RATE, weight_decay=DECAY, fused=True)
    for step, drawn in enumerate(torch.randint(len(answers), (steps, BATCH), generator=generator)):
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - step / steps)
        hidden = functional.relu(functional.linear(rows[drawn], layers[2], layers[3]))
        said = functional.linear(rows[drawn], layers[0], layers[1]) + functional.linear(hidden, layers[4])
        loss = distillation_loss(said, answers[drawn], None, share=DISTILLATION, temperature=TEMPERATURE)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    direct, bias, beside, beside_bias, beside_answer = (layer.detach() for layer in layers)
    direct, beside = direct / spread, beside / spread
    answer = nn.Linear(head.width, head.classes)
    with torch.no_grad():
        answer.weight.copy_(direct)
        answer.bias.copy_(bias - direct @ mean)
    return Head.of(answer, beside=(beside, beside_bias - beside @ mean, beside_answer))
