"""A route: a way through networks with exits on it. Every method of the comparison, baselines included, is one.

A model alone is one stage. A cascade is a stage, an exit that looks at its answers, and a stage that takes the input
again. Learned caches are exits between the stages of one network. So all are calibrated and run by the same code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from latebind.learned.activations import batches
from latebind.learned.compose import Costs, Floats, Seen
from latebind.learned.lookup import LookupFunction
from latebind.learned.samples import Samples
from latebind.program.backends import StageFunction

RUNS, WARM_RUNS = 40, 5  # of a whole route, for what its pieces cost

Classes = NDArray[np.int64]
Scored = tuple[NDArray[np.float32], NDArray[np.float32]]
Look = Callable[[Tensor], Scored]  # what a stage yields -> answers (B, classes), scores (B,)

END = "end"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a network. `again`: it begins another network and takes what the first one took."""

    run: StageFunction
    again: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """Looks at what the stage before it yields; whoever scores `threshold` or more leaves with its answer.

    `bytes` are those of its weights, or of what it keeps.
    """

    name: str
    look: Look
    bytes: int = 0
    threshold: float = float("inf")


@dataclass(frozen=True, slots=True)
class Route:
    """Stages and exits in the order in which a request meets them; the last piece is a stage."""

    pieces: tuple[Stage | Exit, ...]

    @property
    def exits(self) -> tuple[Exit, ...]:
        """All exits, in order; thresholds and costs are counted by it."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Exit))

    def with_thresholds(self, thresholds: Floats) -> "Route":
        """Return the route to run, without exits of infinite threshold and stages whose output is not used."""
        given = iter(thresholds.tolist())
        set_ = [replace(p, threshold=next(given)) if isinstance(p, Exit) else p for p in self.pieces]
        kept: list[Stage | Exit] = []
        looked_at = True  # by an exit, by the next stage or as the last answer
        for piece in reversed(set_):
            if isinstance(piece, Exit):
                if np.isfinite(piece.threshold):
                    kept.append(piece)
                    looked_at = True
            elif looked_at:
                kept.append(piece)
                looked_at = not piece.again
        return Route(tuple(reversed(kept)))

    def __call__(self, *row: Tensor) -> tuple[int, str]:
        """Return the class of one row, each input `(1, ...)`, and the name of the exit that it left by."""
        passed = row
        for piece in self.pieces:
            if isinstance(piece, Stage):
                passed = piece.run(*(row if piece.again else passed))
            else:
                answers, scores = piece.look(passed[0])
                if scores[0] >= piece.threshold:
                    return int(answers[0].argmax()), piece.name
        return int(passed[0][0].argmax()), END


@dataclass(frozen=True, slots=True)
class Answers:
    """What exits and end say of n rows: `scores` and `classes` `(exits, n)`, `ends` `(n,)`."""

    scores: Floats
    classes: Classes
    ends: Classes

    def against(self, base: Classes) -> Seen:
        """Compare the answers with the base model's."""
        return Seen(self.scores, self.classes == base, self.ends == base)


def answers_of(route: Route, samples: Samples) -> Answers:
    """Send all samples through the whole route, past every exit, in batches."""
    exits = len(route.exits)
    scores, classes = np.empty((exits, len(samples))), np.empty((exits, len(samples)), dtype=np.int64)
    ends = np.empty(len(samples), dtype=np.int64)
    for start, batch in batches(samples):
        passed, k = batch, 0
        rows = slice(start, start + len(batch[0]))
        for piece in route.pieces:
            if isinstance(piece, Stage):
                passed = piece.run(*(batch if piece.again else passed))
            else:
                said, scores[k, rows] = piece.look(passed[0])
                classes[k, rows] = said.argmax(axis=1)
                k += 1
        ends[rows] = passed[0].argmax(dim=1).numpy()
    return Answers(scores, classes, ends)


def costs_of(route: Route, samples: Samples) -> Costs:
    """Return median seconds of each piece at batch 1, in its place: between the others, not in a loop of its own."""
    assert isinstance(samples.inputs, tuple)
    runs = [
        _seconds(route, tuple(t[i : i + 1].contiguous() for t in samples.inputs))
        for i in np.arange(RUNS + WARM_RUNS) % len(samples)
    ]
    seconds = [median(each) for each in zip(*runs[WARM_RUNS:], strict=True)]
    segments, lookups = [0.0], []
    for piece, took in zip(route.pieces, seconds, strict=True):
        if isinstance(piece, Stage):
            segments[-1] += took
        else:
            lookups.append(took)
            segments.append(0.0)
    return Costs(tuple(segments), tuple(lookups))


def _seconds(route: Route, row: tuple[Tensor, ...]) -> list[float]:
    passed, found = row, []
    for piece in route.pieces:
        start = perf_counter()
        if isinstance(piece, Stage):
            passed = piece.run(*(row if piece.again else passed))
        else:
            piece.look(passed[0])
        found.append(perf_counter() - start)
    return found


def selected(function: LookupFunction) -> Look:
    """Return a learned cache as it is: the predictor answers, the selector says how sure it is."""
    return function


def unselected(function: LookupFunction) -> Look:
    """Return the same predictor without its selector: the highest share of its softmax says how sure it is.

    One that is sure of every answer has none, and stays as it is.
    """
    if function.head.sure:
        return function
    return LookupFunction(function.features, function.head.without_selector())


def confident(answers: Tensor) -> Scored:
    """Look at the answers of a whole model, for a cascade."""
    said = answers.numpy()
    return said, confidence(said)


def confidence(answers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the highest share of the softmax of each row of logits `(B, classes)`."""
    shares: NDArray[np.float32] = np.exp(answers - answers.max(axis=1, keepdims=True)).sum(axis=1)
    return 1.0 / shares
