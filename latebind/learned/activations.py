"""Runs the base model over samples: its activations at boundaries in bfloat16, its answers, and what lookups answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from latebind.learned.compose import Seen
from latebind.learned.head import Head, HeadFunction
from latebind.learned.lookup import LookupFunction
from latebind.learned.samples import Samples, check_answers
from latebind.program.program import Program

BATCH = 16


def record_activations(
    program: Program,
    samples: Samples,
    rows: Tensor,
    behind: Mapping[int, Tensor],
    *,
    tell: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Run rows of `samples` through the whole network and return its answers `(N, classes) float32`.

    `rows` are row numbers. The activations after each stage in `behind` are written into `behind[stage]`, in the order
    of `rows`, as are the answers. `tell` is called with the share that is done. Raises `ConfigError` for answers with
    NaN.
    """
    assert isinstance(samples.inputs, tuple)
    answers = torch.empty((len(rows), *program.spec.outputs[0].shape))
    for start in range(0, len(rows), BATCH):
        chosen = rows[start : start + BATCH]
        passed = tuple(tensor[chosen] for tensor in samples.inputs)
        for number, stage in enumerate(program.stages):
            passed = stage(*passed)
            if number in behind:
                behind[number][start : start + len(chosen)] = passed[0]
        answers[start : start + len(chosen)] = passed[0]
        tell((start + len(chosen)) / len(rows))
    return check_answers(answers)


@dataclass(frozen=True, slots=True)
class Observed:
    """What lookups answered on samples, with the features `(N, width)` of each and the base model's answers."""

    seen: Seen
    features: tuple[Tensor, ...]
    answers: Tensor


def observe(program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]]) -> Observed:
    """Send `samples` through the network and return the score of each lookup and whether its answer was right.

    `lookups` are pairs of the stage that a lookup stands behind, and its function.
    """
    features, answers = _run(program, samples, lookups, stages=len(program.stages))
    return apply_heads([function.head for _, function in lookups], features, answers)


def features_of(
    program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]]
) -> tuple[Tensor, ...]:
    """Return the features of each lookup, `(N, width)`; the network runs no further than the last of them."""
    return _run(program, samples, lookups, stages=max(stage for stage, _ in lookups) + 1)[0]


def _run(
    program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]], *, stages: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the features of each lookup, and the output of the last of the first `stages` stages."""
    features: list[list[Tensor]] = [[] for _ in lookups]
    ends: list[Tensor] = []
    for _, batch in batches(samples):
        passed: tuple[Tensor, ...] = batch
        for number, run in enumerate(program.stages[:stages]):
            passed = run(*passed)
            for k, (stage, function) in enumerate(lookups):
                if stage == number:
                    features[k].append(function.features(passed[0])[0].clone())
        ends.append(passed[0].clone())
    return tuple(torch.cat(rows) for rows in features), torch.cat(ends)


def apply_heads(heads: Sequence[Head], features: Sequence[Tensor], answers: Tensor) -> Observed:
    """Return what each head answers on its own features, compared with the base model's `answers`."""
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


def empty_activations(rows: int, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised tensor for activations, `(rows, *shape) bfloat16`."""
    return in_shape(torch.empty(rows * prod(shape), dtype=torch.bfloat16), shape)


def in_shape(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a view of a flat tensor as rows of this shape; images lie channels last, which trains fastest."""
    if len(shape) != 3:
        return flat.view(-1, *shape)
    channels, height, width = shape
    return flat.view(-1, height, width, channels).permute(0, 3, 1, 2)
