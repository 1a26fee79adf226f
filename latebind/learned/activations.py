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
from latebind.learned.reading import readings
from latebind.learned.samples import Samples, check_answers
from latebind.program.program import Program

BATCH = 16


def record_activations(
    program: Program,
    samples: Samples,
    rows: Tensor,
    behind: Mapping[int, Tensor],
    *,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Run rows of `samples` through the whole network and return its answers `(N, classes) float32`.

    `rows` are row numbers. What lookups read after each stage in `behind` is written into `behind[stage]`, in the order
    of `rows`, as are the answers. `on_progress` is called with the share that is done. Raises `ConfigError` for answers
    with NaN.
    """
    answers = torch.empty((len(rows), *program.spec.outputs[0].shape))
    read, done = readings(program), 0
    for places, batch in batches(samples, rows):
        passed = batch
        for number, stage in enumerate(program.stages):
            passed = stage(*passed)
            if number in behind:
                behind[number][places] = read[number](passed[0]).to(behind[number].dtype)
        answers[places] = passed[0]
        done += len(passed[0])
        on_progress(done / len(rows))
    return check_answers(answers)


@dataclass(frozen=True, slots=True)
class Observed:
    """What lookups answered on samples, with the features `(N, width)` of each and the base model's answers.

    `own` are the network's answers if it computes less precisely than the base model; None if they are the same.
    """

    seen: Seen
    features: tuple[Tensor, ...]
    answers: Tensor
    own: Tensor | None = None


def observe(
    program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]], *, base: Program | None = None
) -> Observed:
    """Send `samples` through the network and return the score of each lookup and whether its answer was right.

    `lookups` are pairs of the stage that a lookup comes after, and its function. `base` is the same network in full
    precision, with which everything is compared if `program` computes in less.
    """
    features, answers = _run(program, samples, lookups, stages=len(program.stages))
    own = None
    if base is not None:
        own, answers = answers, _run(base, samples, (), stages=len(base.stages))[1]
    heads = [function.head for _, function in lookups]
    return apply_heads(heads, features, answers, own=own, lengths=samples.lengths)


def features_of(
    program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]]
) -> tuple[Tensor, ...]:
    """Return the features of each lookup, `(N, width)`; the network runs only as far as the last of them."""
    return _run(program, samples, lookups, stages=max(stage for stage, _ in lookups) + 1)[0]


def _run(
    program: Program, samples: Samples, lookups: Sequence[tuple[int, LookupFunction]], *, stages: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Run the first `stages` stages and return the features of each lookup, and the answers, if the last one ran."""
    features: list[list[Tensor]] = [[] for _ in lookups]
    ends: list[Tensor] = []
    order: list[Tensor] = []
    read = readings(program)
    for places, batch in batches(samples):
        passed: tuple[Tensor, ...] = batch
        if not isinstance(places, slice):
            order.append(places)
        for number, run in enumerate(program.stages[:stages]):
            passed = run(*passed)
            for k, (stage, function) in enumerate(lookups):
                if stage == number:
                    features[k].append(function.features(function.taken(passed[0], read[number]))[0].clone())
        if stages == len(program.stages):
            ends.append(passed[0].clone())

    def whole(parts: list[Tensor]) -> Tensor:
        found = torch.cat(parts)
        return found[torch.cat(order).argsort()] if order else found

    return tuple(map(whole, features)), whole(ends) if ends else torch.empty(0)


def apply_heads(
    heads: Sequence[Head],
    features: Sequence[Tensor],
    answers: Tensor,
    *,
    own: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Observed:
    """Return what each head answers on its own features, compared with the base model's `answers`.

    `own` are the network's own answers if they differ, and `lengths` those of the rows, if they do.
    """
    classes = answers.argmax(dim=1).numpy()
    scores = np.empty((len(heads), len(answers)))
    right = np.empty((len(heads), len(answers)), dtype=np.bool_)
    for k, (head, rows) in enumerate(zip(heads, features, strict=True)):
        predicted, scores[k] = HeadFunction(head)(rows.numpy())
        right[k] = predicted.argmax(axis=1) == classes
    end = None if own is None else own.argmax(dim=1).numpy() == classes
    seen = Seen(scores, right, end, None if lengths is None else lengths.numpy())
    return Observed(seen, tuple(features), answers, own)


def batches(samples: Samples, rows: Tensor | None = None) -> Iterator[tuple[slice | Tensor, tuple[Tensor, ...]]]:
    """Yield the places and the inputs of each batch of these rows, by number, or of all of them.

    They are in order, unless rows differ in size: those of one size run together, because padding costs time.
    """
    count = len(samples) if rows is None else len(rows)
    if samples.lengths is None:
        for start in range(0, count, BATCH):
            places = slice(start, min(start + BATCH, count))
            yield places, samples.batch(places if rows is None else rows[places])
        return
    every = torch.arange(count) if rows is None else rows
    for alike in samples.of_one_size(every.tolist()):
        for part in torch.split(alike, BATCH):
            yield part, samples.batch(every[part])


def empty_activations(rows: int, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised tensor for activations, `(rows, *shape) bfloat16`."""
    return in_shape(torch.empty(rows * prod(shape), dtype=torch.bfloat16), shape)


def in_shape(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a view of a flat tensor as rows of this shape; images are channels last, which trains fastest."""
    if len(shape) != 3:
        return flat.view(-1, *shape)
    channels, height, width = shape
    return flat.view(-1, height, width, channels).permute(0, 3, 1, 2)
