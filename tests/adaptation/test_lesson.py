"""Lessons of heads: what is derived by hand is what autograd and AdamW make of the same rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.adaptation.lesson import BATCH, DECAY, DISTILLATION, RATE, TEMPERATURE, Layers
from latebind.learned.head import Head, HeadFunction
from latebind.learned.train import distillation_loss

CLASSES, WIDTH, ROWS, STEPS = 4, 6, 300, 7


def material(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = 3.0 * torch.randn(ROWS, WIDTH, generator=generator) + 1.0
    return features, 4.0 * features[:, :CLASSES] + torch.randn(ROWS, CLASSES, generator=generator)


def head(*, beside: int) -> Head:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = nn.Linear(WIDTH, CLASSES)
        hidden = (torch.randn(beside, WIDTH), torch.randn(beside), torch.randn(CLASSES, beside))
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
    for step, drawn in enumerate(torch.randint(ROWS, (STEPS, BATCH), generator=generator)):
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - step / STEPS)
        optimizer.zero_grad()
        loss = distillation_loss(said(rows[drawn]), answers[drawn], None, share=DISTILLATION, temperature=TEMPERATURE)
        torch.autograd.backward(loss)
        optimizer.step()
    return said(rows).detach()


def test_a_lesson_ends_where_autograd_ends() -> None:
    (features, answers), given = material(0), head(beside=5)
    layers = Layers(given, features, torch.Generator())
    layers.learn(answers, torch.Generator().manual_seed(8), steps=STEPS)
    found, _ = HeadFunction(layers.head())(features.numpy())
    expected = by_autograd(given, features, answers, torch.Generator().manual_seed(8))
    before, _ = HeadFunction(given)(features.numpy())
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-3)
    assert not torch.allclose(torch.from_numpy(before), expected, atol=1e-1)


def test_a_head_without_a_hidden_layer_gets_one_that_says_nothing_yet() -> None:
    (features, _), given = material(1), head(beside=0)
    begun = Layers(given, features, torch.Generator().manual_seed(0)).head()
    found, expected = HeadFunction(begun)(features.numpy())[0], HeadFunction(given)(features.numpy())[0]
    assert len(begun.beside_bias) > 0
    assert torch.allclose(torch.from_numpy(found), torch.from_numpy(expected), atol=1e-4)


def test_a_hidden_layer_that_is_new_hears_each_feature_alike_and_no_louder_the_more_there_are() -> None:
    (features, _), given = material(2), head(beside=0)
    begun = Layers(given, features, torch.Generator().manual_seed(0)).head()
    heard = begun.beside_weight * features.std(dim=0, correction=0)
    assert torch.allclose(heard.std(dim=0), torch.tensor(WIDTH**-0.5), rtol=0.4)
