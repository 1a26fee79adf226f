"""Training: it learns what can be learned, the same way each time."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.learned.networks import LIGHT, PLAIN, Selector, make_predictor
from latebind.learned.train import Lesson, PredictorTraining, distillation_loss, predict, train_selector


def lesson(rows: int = 512) -> Lesson:
    generator = torch.Generator().manual_seed(0)
    activations = torch.randn(rows, 4, 6, 6, generator=generator)
    answers = 4.0 * activations.mean(dim=(2, 3))
    return Lesson(activations.half(), answers, answers.argmax(dim=1))


def learned(passes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        predictor = make_predictor((4, 6, 6), 4, PLAIN)
    PredictorTraining(predictor, lesson(), passes=passes, seed=2).learn()
    return predictor


def agreement(predicted: Tensor, wanted: Tensor) -> float:
    return float((predicted.argmax(dim=1) == wanted.argmax(dim=1)).float().mean())


def test_a_predictor_learns_the_base_models_answers() -> None:
    given = lesson()
    assert agreement(predict(learned(30), given.activations), given.answers) > 0.9


def test_kernels_of_convolutions_move_and_keep_their_norm() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        predictor = make_predictor((4, 6, 6), 4, LIGHT)
    before = {name: weight.detach().clone() for name, weight in predictor.named_parameters() if weight.dim() == 4}
    PredictorTraining(predictor, lesson(), passes=1, seed=2).learn()
    assert before
    for name, weight in predictor.named_parameters():
        if name in before:
            start = before[name] / before[name].norm()
            end = weight.detach() / weight.detach().norm()
            assert float((end - start).norm()) > 0.02  # turned, not only scaled
            assert float(weight.detach().norm()) / len(weight) ** 0.5 == pytest.approx(1.0, abs=0.05)


def test_without_distillation_the_loss_is_cross_entropy_of_the_classes() -> None:
    answers, predicted = torch.randn(2, 8, 5)
    labels = answers.argmax(dim=1).roll(1)
    plain = distillation_loss(predicted, answers, labels, share=0.0)
    assert float(plain) == pytest.approx(float(functional.cross_entropy(predicted, labels)))
    assert float(distillation_loss(predicted, answers, labels)) != pytest.approx(float(plain))


def test_a_selector_is_surer_where_the_predictor_is_right() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randn(2_000, 5, generator=generator) * 3
    same = torch.rand(2_000, generator=generator) < torch.softmax(predicted, dim=1).amax(dim=1)
    selector = Selector(5)
    train_selector(selector, predicted, same, generator=generator, steps=300)
    with torch.no_grad():
        scores = selector(predicted)
    assert scores[same].mean() > scores[~same].mean() + 0.5
