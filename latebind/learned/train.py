"""Trains predictors and selectors on the base model's activations and answers. One thread, deterministic by seed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.learned.lookup import has_bfloat16
from latebind.learned.networks import Selector

FORMAT = 3  # version of the training: raised whenever the same lesson leads to other weights
BATCH = 128
STRETCH_BYTES = 2 << 30  # most bytes of activations that are shuffled and read together
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
KERNEL_RATE, KERNEL_MOMENTUM, KERNEL_ROUNDS = 0.08, 0.6, 3
WARM_UP, COOL_DOWN = 0.15, 0.75  # shares of the steps in which the learning rate rises, and falls
TEMPERATURE = 4.0
DISTILLATION = 0.9  # the share of the loss that comes from the base model's distribution; labels give the rest

SELECTOR_STEPS = 300, 1_500  # least and most
PRESENTATIONS_A_STEP = 16  # rows that the predictor sees for each step of its selector
SELECTOR_BATCH = 256
SELECTOR_RATE = 1e-3
FALSE_HIT_PENALTY = 3.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows to learn from: activations `(N, ...) bfloat16`, the base model's logits, and the true classes if known."""

    activations: Tensor
    answers: Tensor
    labels: Tensor | None

    def rows(self, some: slice) -> "Lesson":
        """Return some of the rows."""
        return Lesson(self.activations[some], self.answers[some], None if self.labels is None else self.labels[some])


class PredictorTraining:
    """The training of one predictor: `passes` over a lesson, stretch by stretch.

    A lesson on disk (`recorded`) is read in stretches that fit in memory, so that shuffled rows are not fetched from
    the disk one by one.
    """

    def __init__(
        self, predictor: nn.Module, lesson: Lesson, *, passes: int, seed: int, distillation: float = DISTILLATION
    ) -> None:
        self.predictor = predictor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._lesson = lesson
        self._seed = seed
        self._distillation = distillation
        self._order = _stretches(lesson.activations) * passes
        self._steps = sum(batches_in(len(stretch)) for stretch in self._order)
        self._step = 0
        kernels = [weight for weight in predictor.parameters() if weight.dim() == 4]
        others = [weight for weight in predictor.parameters() if weight.dim() != 4]
        self._optimizer = torch.optim.AdamW(others, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        self._kernels = Kernels(kernels) if kernels else None
        self._half = has_bfloat16()

    def learn(self, on_progress: Callable[[float], None] = lambda share: None) -> None:
        """Train to the end; `on_progress` is called after each batch with the share that is done."""
        self.predictor.train()
        for number, stretch in enumerate(self._order):
            generator = torch.Generator().manual_seed(self._seed + number)
            for rows in _batches(len(stretch), BATCH, generator):
                self._learn_batch(rows + stretch.start)
                on_progress(self._step / self._steps)
        self.predictor.eval()

    def _learn_batch(self, rows: Tensor) -> None:
        lesson = self._lesson
        pace = self._pace()
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * pace
        self._step += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self._half):
            predicted = self.predictor(lesson.activations[rows].float())
        labels = lesson.labels[rows] if lesson.labels is not None else None
        loss = distillation_loss(predicted.float(), lesson.answers[rows], labels, share=self._distillation)
        self.predictor.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if self._kernels is not None:
            self._kernels.step(pace)

    def _pace(self) -> float:
        done = self._step / self._steps
        return max(0.0, min(1.0, (done + 1 / self._steps) / WARM_UP, (1.0 - done) / COOL_DOWN))


class Kernels:
    """Trains the kernels of convolutions with Muon (Jordan et al. 2024), which needs half the rows that AdamW needs.

    Torch's Muon takes matrices, so each kernel shares its memory with one. A batch norm follows every convolution, so
    only a kernel's direction matters: its norm is held, and steps stay equally large from the first to the last.
    """

    def __init__(self, kernels: Sequence[nn.Parameter]) -> None:
        self._kernels = kernels
        self._matrices = [nn.Parameter(_rows_of(kernel.detach())) for kernel in kernels]
        self.optimizer = torch.optim.Muon(
            self._matrices, lr=KERNEL_RATE, momentum=KERNEL_MOMENTUM, weight_decay=0.0, ns_steps=KERNEL_ROUNDS
        )

    def step(self, pace: float) -> None:
        """Take one step at `pace` times the full learning rate, with the kernels' gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = KERNEL_RATE * pace
        for kernel, matrix in zip(self._kernels, self._matrices, strict=True):
            assert kernel.grad is not None
            matrix.grad = kernel.grad.permute(0, 2, 3, 1).flatten(1)
            with torch.no_grad():
                matrix.mul_(len(matrix) ** 0.5 / matrix.norm().clamp(min=1e-12))
        self.optimizer.step()  # type: ignore[no-untyped-call]


def _rows_of(kernel: Tensor) -> Tensor:
    """Return the same memory as a matrix with a row for each output channel."""
    return kernel.permute(0, 2, 3, 1).view(len(kernel), -1)


def distillation_loss(
    predicted: Tensor,
    answers: Tensor,
    labels: Tensor | None,
    *,
    share: float = DISTILLATION,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """Return the loss of Hinton et al. 2015: the base model's softened distribution and the true classes.

    Without labels the base model's own answers replace them. `share` is the weight of the distribution, which is
    softened by `temperature`.
    """
    soft = functional.kl_div(
        functional.log_softmax(predicted / temperature, dim=1),
        functional.softmax(answers / temperature, dim=1),
        reduction="batchmean",
    )
    hard = functional.cross_entropy(predicted, labels if labels is not None else answers.argmax(dim=1))
    return share * temperature**2 * soft + (1.0 - share) * hard


def selector_steps(presentations: int) -> int:
    """Return the steps of a selector whose predictor sees this many rows: if its training is short, so is this one."""
    fewest, most = SELECTOR_STEPS
    return max(fewest, min(most, presentations // PRESENTATIONS_A_STEP))


def train_selector(
    selector: Selector, predicted: Tensor, same: Tensor, *, generator: torch.Generator, steps: int
) -> None:
    """Teach the selector when the predictor's answers `(N, classes)` equal the base model's: `same` `(N,) bool`.

    The predictor must not have seen the rows. A false hit costs more than a miss (GATI, section 3.1).
    """
    optimizer = torch.optim.AdamW(selector.parameters(), lr=SELECTOR_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    wanted = same.float()
    weights = torch.where(same, 1.0, FALSE_HIT_PENALTY)
    left = steps
    while left > 0:
        for rows in _batches(len(same), SELECTOR_BATCH, generator):
            for group in optimizer.param_groups:
                group["lr"] = SELECTOR_RATE * max(0.0, left / steps)
            scores = selector(predicted[rows])
            loss = functional.binary_cross_entropy_with_logits(scores, wanted[rows], weights[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            left -= 1
    selector.eval()


@torch.no_grad()
def predict(predictor: nn.Module, activations: Tensor) -> Tensor:
    """Return the answers of a trained predictor, computed in float32."""
    predictor.eval()
    return torch.cat([predictor(part.float()) for part in torch.split(activations, BATCH)])


def batches_in(rows: int) -> int:
    """Return how many batches one pass over `rows` has."""
    return max(1, rows // BATCH)


def _stretches(activations: Tensor) -> list[range]:
    """Split the rows evenly into as few stretches as fit in `STRETCH_BYTES` each."""
    n = len(activations)
    parts = max(1, -(-activations.nbytes // STRETCH_BYTES))
    ends = [n * part // parts for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _batches(rows: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of shuffled row numbers; an incomplete last batch is left out, unless it is the only one."""
    order = torch.randperm(rows, generator=generator)
    whole = order[: rows - rows % size] if rows >= size else order
    for part in torch.split(whole, size):
        yield part.sort().values
