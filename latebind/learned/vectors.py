"""Embeddings in less than full precision: whether their vectors stay within the declared distance.

Such models have no learned caches. Their vectors follow from the last block: after the fifth of the six blocks of
all-MiniLM-L6-v2 predictors come within a cosine of 0.99 for 2 texts in 1,000 (`python -m research vectors`). The
cheaper way is the whole network in fewer bits, and only the user knows how far a vector may move.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean, median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.learned.activations import BATCH, batches
from latebind.learned.metadata import NEARNESS, ROUNDING, Nearness
from latebind.learned.promise import OF_VECTORS, Fidelity, Promise, over
from latebind.learned.samples import NO_SAMPLES, Samples, check_answers
from latebind.program.backends import BACKENDS, exact_backends, run_chain
from latebind.program.load import load_program
from latebind.program.measure import interleaved
from latebind.program.padding import filled_up
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory, json_bytes

NEAREST = 10  # neighbors that retrieval returns
MOST_TEXTS = 2_000  # among which neighbors are sought
ROUNDS = 9  # of both networks on one row
TIMED = 21  # rows of lengths over the whole range, on which both networks are timed
DECLARE = (
    f"only you know how far its vectors may move: declare it (--fidelity {OF_VECTORS}: 97 % of them within a cosine "
    "of 0.99 of the full network's), and it is computed in fewer bits if data shows that they stay and it is faster"
)


def check_vectors(spec: ModelSpec) -> None:
    """Raise `ConfigError` unless a model answers with vectors: one output `(B, D) float32`."""
    if [(out.dtype, len(out.shape)) for out in spec.outputs] != [("float32", 1)] or spec.outputs[0].shape[0] < 2:
        raise ConfigError(f"{spec.name} does not answer with one float32 vector a row: a cosine is defined for vectors")


def certify(
    directory: ModelDirectory, held_out: Samples, fidelity: Fidelity, promise: Promise, *, threads: int = 1
) -> tuple[ModelDirectory, Nearness | None]:
    """Compare the vectors of a model with those in full precision, and write what the samples show if that is enough.

    Returns the directory as it then is; None if the model computes in full precision, for which nothing has to be
    shown. Raises `ConfigError` for samples that the model does not take, too few of them, and a model without vectors.
    """
    if fidelity.cosine is None:
        raise ConfigError(f"{directory.path.parent.name} answers with vectors: {DECLARE}")
    program = load_program(directory, threads=threads)
    check_vectors(program.spec)
    if BACKENDS[program.backend].exact:
        return (directory.write_files({}, remove=[NEARNESS]) if NEARNESS in directory.files else directory), None
    if not len(held_out):
        raise ConfigError(NO_SAMPLES)
    rows = held_out.ordered(program.spec.inputs, program.spec.dims)
    if not promise.can_show(len(rows)):
        raise ConfigError(promise.not_shown(len(rows)))
    full = load_program(directory, threads=threads, backend=exact_backends()[-1])  # the last one is the fastest
    vectors, wanted = (check_answers(vectors_of(each, rows)) for each in (program, full))
    cosines = cosines_of(vectors, wanted)
    if (
        rows.lengths is not None and not program.spec.one_size
    ):  # a server answers rows alone and together: the worse counts
        cosines = np.minimum(cosines, cosines_of(check_answers(vectors_together(program, rows)), wanted))
    wrong = int((cosines < fidelity.cosine).sum())
    own, whole = _seconds([program, full], rows)
    found = Nearness(
        fidelity.cosine,
        fidelity.share,
        1.0 - wrong / len(rows),
        promise.lower_bound(wrong, len(rows)),
        promise.confidence,
        promise.answers,
        len(rows),
        float(cosines.mean()),
        float(cosines.min()),
        recall(vectors[:MOST_TEXTS], wanted[:MOST_TEXTS]),
        own,
        whole,
        ROUNDING,
    )
    return (directory.write_files({NEARNESS: json_bytes(found)}) if found.kept else directory), found


def summary(near: Nearness) -> str:
    """Return the share that was shown, in words."""
    return (
        f"{near.within:.4f} of {near.samples} held-out samples within a cosine of {near.cosine:g} of the full "
        f"network's vector, with {near.confidence:.0%} confidence at least {near.lower:.4f}{over(near.answers)} "
        f"(target {near.target:g})"
    )


def rows_of(near: Nearness) -> list[tuple[str, str]]:
    """Return label and text of each line of the report."""
    return [
        ("fidelity", summary(near)),
        ("cosines", f"{near.mean:.5f} in the mean, {near.least:.4f} at the least"),
        (
            f"recall@{NEAREST}",
            f"{near.recall:.4f}: of a sample's {NEAREST} nearest among {min(near.samples, MOST_TEXTS)}, this share "
            "is among those by the full network",
        ),
        (
            "latency",
            f"{near.seconds * 1e3:.2f} ms instead of {near.seconds_full * 1e3:.2f} ms at batch 1, "
            f"{near.seconds_full / near.seconds:.2f} times less",
        ),
    ]


def vectors_of(program: Program, samples: Samples) -> Tensor:
    """Return the answers `(N, D) float32` to samples, which must be `ordered`."""
    found = torch.empty(len(samples), *program.spec.outputs[0].shape)
    with torch.inference_mode():
        for places, batch in batches(samples):
            found[places] = program.run(*batch)[0]
    return found


def vectors_together(program: Program, samples: Samples) -> Tensor:
    """Return the answers `(N, D) float32` to samples of any length, in batches padded to the longest."""
    assert isinstance(samples.inputs, tuple)
    assert samples.lengths is not None
    found = list[Tensor]()
    with torch.inference_mode():
        for some in torch.split(torch.arange(len(samples)), min(BATCH, program.spec.max_batch)):
            inputs = list[Tensor]()
            for spec, part in zip(program.spec.inputs, samples.inputs, strict=True):
                rows = [part[int(row)][None] for row in some]
                longest = [max(sizes) for sizes in zip(*(row.shape[1:] for row in rows), strict=True)]
                inputs.append(filled_up(rows, longest, spec.padding or 0))
            found.append(run_chain(program.stages, tuple(inputs), samples.lengths[some].tolist())[0].clone())
    return torch.cat(found)


def cosines_of(vectors: Tensor, others: Tensor) -> NDArray[np.float64]:
    """Return the cosine `(N,)` of the angle between each pair of vectors; 0 if one of them is 0."""
    found: NDArray[np.float64] = functional.cosine_similarity(vectors.double(), others.double(), dim=1).numpy()
    return found


def recall(vectors: Tensor, others: Tensor, most: int = NEAREST) -> float:
    """Return the share of the `most` nearest neighbors by cosine that both sets of vectors, `(N, D)`, agree on."""
    count = min(most, len(vectors) - 1)
    if count < 1:
        return 1.0
    near = [_nearest(each, count) for each in (vectors, others)]
    return float((near[0][:, :, None] == near[1][:, None, :]).any(2).double().mean())


def _nearest(vectors: Tensor, count: int) -> Tensor:
    """Return the places `(N, count)` of the nearest neighbors of each vector, itself left out."""
    rows = functional.normalize(vectors.double(), dim=1)
    return (rows @ rows.T).fill_diagonal_(-torch.inf).topk(count, dim=1).indices


def _seconds(programs: Sequence[Program], samples: Samples) -> list[float]:
    """Return the mean seconds of each program at batch 1, over samples of lengths from the shortest to the longest."""
    rows = [samples.batch(torch.tensor([row])) for row in samples.at_quantiles(np.linspace(0.02, 0.98, TIMED).tolist())]
    found = list[list[float]]()
    for row in rows:
        calls = {str(number): partial(program.run, *row) for number, program in enumerate(programs)}
        found.append([median(seconds) for seconds in interleaved(calls, ROUNDS).values()])
    return [fmean(each) for each in zip(*found, strict=True)]
