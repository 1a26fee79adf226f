"""The head of a lookup: the layers from features to answers, and the selector. It is not part of the compiled network.

So a new head (`adaptation`) takes effect between two batches, with nothing to compile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from latebind.learned.networks import Selector

SELECTOR_HIDDEN = 64
LEAST_DOUBT = np.float32(1e-7)  # least probability of another answer that float32 distinguishes from 0
SURE = np.float32(1e9)  # the score of a head that is always sure: above any log-odds

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Head:
    """The arrays of a head, float32: a linear layer, a branch beside it with one hidden layer, and the selector.

    `answer_weight` is `(classes, features)`, `beside_weight` `(hidden, features)` and `beside_answer`
    `(classes, hidden)`; hidden is 0 if there is no branch. Answers are the sum of the layer and the branch.
    """

    answer_weight: Floats
    answer_bias: Floats
    beside_weight: Floats
    beside_bias: Floats
    beside_answer: Floats
    hidden_weight: Floats
    hidden_bias: Floats
    score_weight: Floats
    score_bias: Floats

    @classmethod
    def of(
        cls,
        answer: "nn.Linear",
        selector: "Selector | None" = None,
        *,
        beside: tuple["Tensor", "Tensor", "Tensor"] | None = None,
    ) -> Self:
        """Return a copy of these layers as a head; without a selector its scores are the answers' own log-odds."""
        classes, width = answer.weight.shape

        def copied(tensor: "Tensor") -> Floats:
            found: Floats = tensor.detach().float().numpy().copy()
            return found

        tensors = [copied(answer.weight), copied(answer.bias)]
        tensors += map(copied, beside) if beside is not None else map(_zeros, ((0, width), (0,), (classes, 0)))
        if selector is not None:
            layers = (selector.hidden, selector.score)
            tensors += [copied(tensor) for layer in layers for tensor in (layer.weight, layer.bias)]
        else:
            shapes = ((SELECTOR_HIDDEN, 2 * classes), (SELECTOR_HIDDEN,), (1, SELECTOR_HIDDEN), (1,))
            tensors += map(_zeros, shapes)
        return cls(*tensors)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Floats]) -> Self:
        """Return the head made of these arrays by name; raises `ValueError` if they do not form one."""
        if set(tensors) != set(cls.__slots__) or any(tensor.dtype != np.float32 for tensor in tensors.values()):
            raise ValueError(f"a head has float32 tensors {', '.join(cls.__slots__)}, these are {', '.join(tensors)}")
        found = cls(**tensors)
        shapes = [tensor.shape for tensor in found.tensors().values()]
        if [len(shape) for shape in shapes] != [2, 1, 2, 1, 2, 2, 1, 2, 1]:
            raise ValueError(f"tensors of shapes {shapes} do not form a head")
        classes, width, beside = found.classes, found.width, len(found.beside_bias)
        answer = [(classes, width), (classes,), (beside, width), (beside,), (classes, beside)]
        selector = [(SELECTOR_HIDDEN, 2 * classes), (SELECTOR_HIDDEN,), (1, SELECTOR_HIDDEN), (1,)]
        if shapes != answer + selector:
            raise ValueError(f"tensors of shapes {shapes} do not form a head")
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise ValueError("a head has numbers that are not finite")
        return found

    @property
    def classes(self) -> int:
        """The number of classes it answers with."""
        return int(self.answer_weight.shape[0])

    @property
    def width(self) -> int:
        """The number of features it takes."""
        return int(self.answer_weight.shape[-1])

    @property
    def sure(self) -> bool:
        """Whether it is sure of every answer, so that at any threshold either all requests hit or none."""
        return bool(self.score_bias[0] >= SURE)

    def always_sure(self) -> Self:
        """Return the same head with the score `SURE` for every answer."""
        return replace(self, score_weight=np.zeros_like(self.score_weight), score_bias=np.array([SURE]))

    def without_selector(self) -> Self:
        """Return the same head with the answers' own log-odds as scores."""
        nothing = {name: np.zeros_like(getattr(self, name)) for name in ("score_weight", "score_bias")}
        return replace(self, **nothing)

    def tensors(self) -> dict[str, Floats]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def _zeros(shape: tuple[int, ...]) -> Floats:
    return np.zeros(shape, np.float32)


class HeadFunction:
    """Runs a head: `head(features (B, width) float32) -> (answers (B, classes), scores (B,))`, both float32.

    It uses numpy, because at batch 1 a dozen torch operations take twice as long: 80 microseconds instead of 40 when a
    network has just passed through the core's caches. An OpenVINO graph with the tensors as inputs takes 100.
    """

    def __init__(self, head: Head) -> None:
        tensors = head.tensors()
        first = np.concatenate([tensors["answer_weight"], tensors["beside_weight"]])  # one product is faster than two
        self._first = np.ascontiguousarray(first.T)
        self._first_bias = np.concatenate([tensors["answer_bias"], tensors["beside_bias"]])
        self._beside_answer = np.ascontiguousarray(tensors["beside_answer"].T)
        self._classes = head.classes
        self._branches = len(tensors["beside_bias"]) > 0
        self._hidden = np.ascontiguousarray(tensors["hidden_weight"].T)
        self._hidden_bias = tensors["hidden_bias"]
        self._score = tensors["score_weight"][0]
        self._score_bias = tensors["score_bias"]
        self._sure = head.sure
        self._selects = bool(self._score.any() or self._score_bias.any())

    def __call__(self, features: Floats) -> tuple[Floats, Floats]:
        """Return answers and scores; the same numbers that `Selector` computes in training."""
        answers = features @ self._first
        answers += self._first_bias
        if self._branches:
            answers, beside = answers[:, : self._classes], answers[:, self._classes :]
            np.maximum(beside, 0.0, out=beside)
            answers += beside @ self._beside_answer
        if self._sure:
            return answers, np.full(len(answers), SURE)
        if not self._selects:
            return answers, _odds(answers)
        logs = answers - np.maximum.reduce(answers, axis=1, keepdims=True)
        rows, classes = answers.shape
        seen = np.empty((rows, 2 * classes), np.float32)
        shares = seen[:, :classes]
        np.exp(logs, out=shares)
        total = np.add.reduce(shares, axis=1, keepdims=True)
        np.subtract(logs, np.log(total), out=seen[:, classes:])
        shares /= total
        hidden = seen @ self._hidden
        hidden += self._hidden_bias
        np.maximum(hidden, 0.0, out=hidden)
        scores = hidden @ self._score
        scores += self._score_bias
        scores -= np.log(np.maximum(total[:, 0] - 1.0, LEAST_DOUBT))
        return answers, scores


def _odds(answers: Floats) -> Floats:
    """Return the log-odds of the highest class of each row; the highest contributes 1 to a sum, the others the rest."""
    shares = np.exp(answers - np.maximum.reduce(answers, axis=1, keepdims=True))
    others = np.add.reduce(shares, axis=1, dtype=np.float64) - 1.0  # in float32 a doubt below 1e-7 would vanish
    scores: Floats = -np.log(np.maximum(others, LEAST_DOUBT)).astype(np.float32)
    return scores
