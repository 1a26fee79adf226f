"""Heads shifted to other shares of classes, and heads that are taught."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from latebind.adaptation.retrain import RAREST, Prior, taught
from latebind.learned.head import Head, HeadFunction
from latebind.learned.networks import Selector
from latebind.learned.stored import Rows

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
    best = replace(best_head(), answer_bias=logs.numpy())
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
        assert np.isfinite(bias).all()
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


def test_a_taught_head_learns_what_the_features_say_and_goes_on_from_what_it_knew() -> None:
    traffic = drawn(2_000, SKEWED, 1)
    swapped = traffic.features["a"][:, [1, 0, *range(2, WIDTH)]]  # two classes have changed places
    rows = Rows({"a": swapped}, traffic.answers, traffic.classes)
    given, generator = best_head(), torch.Generator().manual_seed(0)
    unlearned = taught(given, swapped, rows.answers, generator, steps=0)
    found = taught(given, swapped, rows.answers, generator)
    again = taught(found, swapped, rows.answers, generator, steps=0)
    assert torch.allclose(said(unlearned, swapped), said(given, swapped), atol=1e-3)  # its hidden layer begins silent
    assert right(given, rows) < 0.4
    assert right(found, rows) > 0.7
    assert torch.allclose(said(again, swapped), said(found, swapped), atol=1e-3)


def said(head: Head, features: Tensor) -> Tensor:
    return torch.from_numpy(HeadFunction(head)(features.numpy())[0])
