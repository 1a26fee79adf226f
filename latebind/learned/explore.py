"""Exploration: each candidate is trained on what the base model makes of samples and measured in its place.

GATI, section 4.1. All candidates learn from one pass of the base model over the samples, as far as memory allows.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.activations import Captured, bytes_a_row, capture
from latebind.learned.compiled import compile_lookup
from latebind.learned.head import Selector
from latebind.learned.latency import latency_in_place
from latebind.learned.lookup import LookupFunction
from latebind.learned.networks import Predictor, make_predictor
from latebind.learned.plan import Candidate
from latebind.learned.samples import Samples
from latebind.learned.stored import LookupFiles, Rows
from latebind.learned.train import DISTILLATION, Lesson, PredictorTraining, batches_in, predict, train_selector
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

MOST_PASSES = 40
SELECTOR_SHARE = 0.15  # of the rows to fit; the predictors never see them
FEWEST_ROWS = 64
LESSON_ROWS = 5_000  # that are kept for adaptation
RANGE_ROWS = 512  # of those that show a lookup in eight bits how large its numbers get

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A lookup ready to run: what was planned, as data, compiled, and its latency over batch sizes."""

    plan: Candidate
    files: LookupFiles
    function: LookupFunction
    curve: Curve
    lessons: Rows | None = None  # for later: the predictor has not seen them; of this lookup alone

    @property
    def bytes(self) -> int:
        """The size of the weights."""
        return self.files.bytes


@dataclass(frozen=True, slots=True)
class Explorer:
    """Trains candidates for `program`; `wide` is the same on all cores, for work that is not measured.

    `distillation` is the share of the base model's distribution in the loss (`train.distillation_loss`).
    """

    program: Program
    wide: Program
    seed: int
    progress: Progress
    distillation: float = DISTILLATION

    def train(self, planned: Sequence[Candidate], fit: Samples, *, presentations: int, memory: int) -> list[Trained]:
        """Train a predictor and a selector for each candidate on the rows of `fit`, and measure them in their place.

        Each predictor sees about `presentations` rows, repetitions counted; activations take at most `memory` bytes
        at a time. The last rows are kept for the selectors.
        """
        stages = sorted({one.stage for one in planned})
        room = max(FEWEST_ROWS, memory // bytes_a_row(self.program, stages))
        learn = len(fit) - max(1, round(SELECTOR_SHARE * len(fit)))
        parts = _parts(torch.randperm(learn, generator=_generator(self.seed, -1)), room)
        passes = max(1, min(MOST_PASSES, round(presentations / learn)))
        steps = sum(passes * batches_in(len(part)) for part in parts)
        predictors = [self._predictor(one) for one in planned]
        training = [
            PredictorTraining(
                predictor, steps=steps, generator=_generator(self.seed, one.stage), distillation=self.distillation
            )
            for one, predictor in zip(planned, predictors, strict=True)
        ]
        each = 0.75 / len(parts)
        for number, part in enumerate(parts):
            begun = 0.02 + each * number
            self.progress(f"running the base model, part {number + 1} of {len(parts)}", begun)
            captured = self._capture(fit.take(part), stages)
            for place, one in enumerate(planned):

                def tell(done: float, place: int = place, one: Candidate = one, begun: float = begun) -> None:
                    share = begun + each * (0.2 + 0.8 * (place + done) / len(planned))
                    self.progress(f"training {one.kind} behind stage {one.stage}", share)

                with all_cores(self.program.threads):
                    training[place].learn(_lesson(captured, one.stage), passes=passes, tell=tell)
        self.progress("training selectors", 0.78)
        unseen = self._capture(fit.take(torch.arange(learn, len(fit))[-room:]), stages)
        return [
            self._finish(one, predictor, unseen, first_row(fit))
            for one, predictor in zip(planned, predictors, strict=True)
        ]

    def _capture(self, samples: Samples, stages: list[int]) -> Captured:
        with all_cores(self.program.threads):
            return capture(self.wide, samples, stages)

    def _predictor(self, one: Candidate) -> Predictor:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return make_predictor(self.program.activations[one.stage], self._classes, one.kind)

    def _finish(self, one: Candidate, predictor: Predictor, unseen: Captured, inputs: tuple[Tensor, ...]) -> Trained:
        activations = unseen.behind[one.stage]
        predicted = predict(predictor, activations)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            selector = Selector(self._classes)
        same = predicted.argmax(dim=1) == unseen.answers.argmax(dim=1)
        train_selector(selector, predicted, same, generator=_generator(self.seed, one.stage))
        compiled = compile_lookup(predictor, selector, activations[:RANGE_ROWS].float(), self.program)
        curve = latency_in_place(self.program, inputs, one.stage, compiled.function)
        return Trained(one, compiled.files, compiled.function, curve, _lessons(one.stage, predictor, unseen))

    @property
    def _classes(self) -> int:
        return self.program.spec.outputs[0].shape[0]


def _lessons(stage: int, predictor: Predictor, unseen: Captured) -> Rows:
    """Return a part of the unseen rows, the same for each lookup, as this one sees them."""
    rows = torch.randperm(len(unseen.answers), generator=torch.Generator().manual_seed(0))[:LESSON_ROWS].sort().values
    features, answers = predict(predictor.features, unseen.behind[stage][rows]), unseen.answers[rows]
    return Rows({stage: features.bfloat16()}, answers.bfloat16(), answers.argmax(dim=1))


def on_all_cores(directory: ModelDirectory, program: Program) -> Program:
    """Return the same program on all cores."""
    wide = load_program(directory, threads=os.cpu_count() or 1, backend=program.backend)
    torch.set_num_threads(program.threads)
    return wide


@contextmanager
def all_cores(threads: int) -> Iterator[None]:
    """Let torch use every core for a while; what is measured has `threads`."""
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def first_row(samples: Samples) -> tuple[Tensor, ...]:
    """Return one row of each input; the inputs must be a tuple (`Samples.ordered`)."""
    assert isinstance(samples.inputs, tuple)
    return tuple(tensor[:1] for tensor in samples.inputs)


def _generator(seed: int, stage: int) -> torch.Generator:
    """Each stage draws for itself, so that it trains alike whatever other stages are candidates."""
    return torch.Generator().manual_seed(1_000 * seed + stage + 1)


def _parts(rows: Tensor, room: int) -> list[Tensor]:
    """Part the rows evenly into as few pieces as have room."""
    return list(torch.tensor_split(rows, max(1, -(-len(rows) // room))))


def _lesson(captured: Captured, stage: int) -> Lesson:
    return Lesson(captured.behind[stage], captured.answers, captured.labels)
