"""Heads shifted to other shares of classes, and heads that are taught."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.adaptation.heads import BATCH, DECAY, DISTILLATION, RAREST, RATE, TEMPERATURE, Layers, Prior
from latebind.learned.head import Head, HeadFunction, Selector
from latebind.learned.stored import Rows
from latebind.learned.train import distillation_loss

ANSWERS, FEATURES, LESSONS, STEPS = 4, 6, 300, 7
CLASSES, WIDTH, SPREAD = 5, 8, 1.4
SKEWED = {0: 0.7, 1: 0.1, 2: 0.1, 3: 0.05, 4: 0.05}


def drawn(count: int, mix: dict[int, float], seed: int) -> Rows:
    """Rows whose classes overlap: features are normal about a place of their class."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([mix[answer] for answer in range(CLASSES)])
    classes = torch.multinomial(shares, count, replacement=True, generator=generator)
    features = SPREAD * torch.nn.functional.one_hot(classes, WIDTH) + torch.randn(count, WIDTH, generator=generator)
    return Rows({"a": features}, 8.0 * torch.nn.functional.one_hot(classes, CLASSES), classes)


def even(count: int, seed: int = 0) -> Rows:
    return drawn(count, dict.fromkeys(range(CLASSES), 1.0 / CLASSES), seed)


def best_head(*, times: float = 1.0) -> Head:
    """Return the best there is for even classes (Bayes), its answers `times` as large as the log-probabilities."""
    layer = torch.nn.Linear(WIDTH, CLASSES)
    layer.weight.data = times * SPREAD * torch.eye(CLASSES, WIDTH)
    layer.bias.data.zero_()
    return Head.of(layer)


def right(head: Head, rows: Rows) -> float:
    answers, _ = HeadFunction(head)(rows.features["a"].numpy())
    return float((answers.argmax(axis=1) == rows.classes.numpy()).mean())


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_a_shifted_head_is_as_good_as_could_be_however_sure_it_was(times: float) -> None:
    head, traffic = best_head(times=times), drawn(20_000, SKEWED, 1)
    prior = Prior.of({"a": head}, even(5_000))
    assert prior.temperatures["a"] == pytest.approx(times, rel=0.15)
    logs = torch.tensor([SKEWED[answer] for answer in range(CLASSES)]).log()
    best = replace(best_head(), answer_bias=logs)
    found = right(prior.shifted({"a": head}, SKEWED)["a"], traffic)
    assert found == pytest.approx(right(best, traffic), abs=0.004)
    assert found > right(head, traffic) + 0.05


def test_no_class_is_given_up() -> None:
    """Not even one that does not come, nor one that no row to learn from has."""
    head = best_head()
    kept = even(5_000)
    without_last = Rows({"a": kept.features["a"][kept.classes < 4]}, kept.answers, kept.classes[kept.classes < 4])
    for rows in (kept, without_last):
        prior = Prior.of({"a": head}, rows)
        bias = prior.shifted({"a": head}, {0: 1.0})["a"].answer_bias
        assert bool(bias.isfinite().all())
        assert float(bias.min()) == pytest.approx(prior.temperatures["a"] * float(np.log(RAREST)), rel=1e-4)


def test_a_selector_that_knows_nothing_of_the_shift_is_left_out() -> None:
    selector = Selector(CLASSES)
    torch.nn.init.normal_(selector.score.weight)
    head = Head.of(torch.nn.Linear(WIDTH, CLASSES), selector)
    shifted = Prior.of({"a": head}, even(500)).shifted({"a": head}, SKEWED)["a"]
    assert not bool(shifted.score_weight.any())


def test_a_sure_head_stays_as_it_is() -> None:
    heads = {"a": best_head(), "sure": best_head().always_sure()}
    rows = even(500)
    prior = Prior.of(heads, Rows({**rows.features, "sure": rows.features["a"]}, rows.answers, rows.classes))
    assert prior.shifted(heads, SKEWED)["sure"] is heads["sure"]


def lessons(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = 3.0 * torch.randn(LESSONS, FEATURES, generator=generator) + 1.0
    return features, 4.0 * features[:, :ANSWERS] + torch.randn(LESSONS, ANSWERS, generator=generator)


def head(*, beside: int) -> Head:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = nn.Linear(FEATURES, ANSWERS)
        hidden = (torch.randn(beside, FEATURES), torch.randn(beside), torch.randn(ANSWERS, beside))
        return Head.of(layer, beside=hidden)


def by_autograd(given: Head, features: Tensor, answers: Tensor, generator: torch.Generator) -> Tensor:
    """Return what a head with a hidden layer says of the features after a lesson, learned in the usual way."""
    mean, spread = features.mean(dim=0), features.std(dim=0, correction=0)
    rows = (features - mean) / spread
    weight, bias = given.answer_weight * spread, given.answer_bias + given.answer_weight @ mean
    beside, beside_bias = given.beside_weight * spread, given.beside_bias + given.beside_weight @ mean
    learned = [nn.Parameter(part) for part in (weight, bias, beside, beside_bias, given.beside_answer.clone())]

    def said(some: Tensor) -> Tensor:
        hidden = functional.relu(functional.linear(some, learned[2], learned[3]))
        return functional.linear(some, learned[0], learned[1]) + functional.linear(hidden, learned[4])

    optimizer = torch.optim.AdamW(learned, weight_decay=DECAY)
    for step, drawn in enumerate(torch.randint(LESSONS, (STEPS, BATCH), generator=generator)):
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - step / STEPS)
        optimizer.zero_grad()
        loss = distillation_loss(said(rows[drawn]), answers[drawn], None, share=DISTILLATION, temperature=TEMPERATURE)
        torch.autograd.backward(loss)
        optimizer.step()
    return said(rows).detach()


def test_a_lesson_ends_where_autograd_ends() -> None:
    (features, answers), given = lessons(0), head(beside=5)
    layers = Layers(given, features, torch.Generator())
    layers.learn(answers, torch.Generator().manual_seed(8), steps=STEPS)
    found, _ = HeadFunction(layers.head())(features.numpy())
    expected = by_autograd(given, features, answers, torch.Generator().manual_seed(8))
    before, _ = HeadFunction(given)(features.numpy())
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-3)
    assert not torch.allclose(torch.from_numpy(before), expected, atol=1e-1)


def test_a_head_without_a_hidden_layer_gets_one_that_says_nothing_yet() -> None:
    (features, _), given = lessons(1), head(beside=0)
    begun = Layers(given, features, torch.Generator().manual_seed(0)).head()
    found, expected = HeadFunction(begun)(features.numpy())[0], HeadFunction(given)(features.numpy())[0]
    assert len(begun.beside_bias) > 0
    assert torch.allclose(torch.from_numpy(found), torch.from_numpy(expected), atol=1e-4)
