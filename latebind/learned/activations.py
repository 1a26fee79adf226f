"""What the base model makes of samples: activations at boundaries, kept in half the bytes, and its answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from latebind.learned.compose import Seen
from latebind.learned.head import Head, HeadFunction
from latebind.learned.lookup import LookupFunction
from latebind.learned.samples import Samples
from latebind.program.program import Program

BATCH = 16
HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Captured:
    """Some samples gone through the base model: `behind[stage]` `(N, ...) bfloat16`, `answers` `(N, classes)`."""

    behind: dict[int, Tensor]
    answers: Tensor
    labels: Tensor | None


def bytes_a_row(program: Program, stages: Sequence[int]) -> int:
    """Return the memory that one row of `capture` takes."""
    return sum(HALF_BYTES * prod(program.activations[stage]) for stage in stages)


def capture(program: Program, samples: Samples, stages: Sequence[int]) -> Captured:
    """Run `samples` through the whole network and keep what comes out behind `stages`."""
    n = len(samples)
    # channels last, as convolutions train fastest
    behind = {stage: _room(n, program.activations[stage]) for stage in stages}
    answers = torch.empty((n, *program.spec.outputs[0].shape))
    for start, batch in batches(samples):
        passed: tuple[Tensor, ...] = batch
        for number, stage in enumerate(program.stages):
            passed = stage(*passed)
            if number in behind:
                behind[number][start : start + len(passed[0])] = passed[0]
        answers[start : start + len(passed[0])] = passed[0]
    return Captured(behind, answers, samples.labels)


@dataclass(frozen=True, slots=True)
class Observed:
    """What lookups made of samples, and what they made it from: features `(N, width)` of each, base answers."""

    seen: Seen
    features: tuple[Tensor, ...]
    answers: Tensor


def observe(program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]]) -> Observed:
    """Send `samples` through the network and note how sure each lookup was and whether right.

    `lookups` are pairs of the stage that a lookup stands behind and its function.
    """
    features: list[list[Tensor]] = [[] for _ in lookups]
    answers: list[Tensor] = []
    for _, batch in batches(samples):
        passed: tuple[Tensor, ...] = batch
        for number, run in enumerate(program.stages):
            passed = run(*passed)
            for k, (stage, function) in enumerate(lookups):
                if stage == number:
                    features[k].append(function.features(passed[0])[0].clone())
        answers.append(passed[0].clone())
    heads = [function.head for _, function in lookups]
    return observed(heads, [torch.cat(rows) for rows in features], torch.cat(answers))


def observed(heads: Sequence[Head], features: Sequence[Tensor], answers: Tensor) -> Observed:
    """Return what `heads` make of features, each of its own, where the base model gave `answers`."""
    classes = answers.argmax(dim=1).numpy()
    scores = np.empty((len(heads), len(answers)))
    right = np.empty((len(heads), len(answers)), dtype=np.bool_)
    for k, (head, rows) in enumerate(zip(heads, features, strict=True)):
        said, scores[k] = HeadFunction(head)(rows.numpy())
        right[k] = said.argmax(axis=1) == classes
    return Observed(Seen(scores, right), tuple(features), answers)


def batches(samples: Samples) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Yield the first row and the inputs of each batch, in order."""
    assert isinstance(samples.inputs, tuple)
    for start in range(0, len(samples), BATCH):
        yield start, tuple(tensor[start : start + BATCH].contiguous() for tensor in samples.inputs)


def _room(rows: int, shape: tuple[int, ...]) -> Tensor:
    if len(shape) != 3:
        return torch.empty((rows, *shape), dtype=torch.bfloat16)
    channels, height, width = shape
    return torch.empty((rows, height, width, channels), dtype=torch.bfloat16).permute(0, 3, 1, 2)
