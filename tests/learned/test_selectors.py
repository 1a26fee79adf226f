"""A selector stays where it lets more rows leave than the predictor's own odds do, and goes where it does not."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from latebind.learned.activations import Observed, apply_heads
from latebind.learned.build import without_idle_selectors
from latebind.learned.head import Head, HeadFunction, Selector

CLASSES, ROWS = 3, 3_000
GENERATOR = torch.Generator().manual_seed(0)


def rows() -> tuple[Tensor, Tensor]:
    """Features that are logits, and answers of a base model that differ where the first class is likely."""
    features = 3.0 * torch.randn(ROWS, CLASSES, generator=GENERATOR)
    other = (features.argmax(dim=1) == 0) & (torch.rand(ROWS, generator=GENERATOR) < 0.5)
    classes = torch.where(other, 1, features.argmax(dim=1))
    return features, torch.nn.functional.one_hot(classes, CLASSES).float()


def head(*, doubts: int) -> Head:
    """Answers with the features themselves; its selector doubts one class very much."""
    layer, selector = torch.nn.Linear(CLASSES, CLASSES), Selector(CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(CLASSES))
        layer.bias.zero_()
        selector.hidden.weight.zero_()
        selector.hidden.bias.zero_()
        selector.hidden.weight[0, doubts] = 1.0  # the share of that class
        selector.score.weight[0, 0] = -50.0
    return Head.of(layer, selector)


def chosen(given: Head) -> Head:
    features, answers = rows()
    seen: Observed = apply_heads([given], [features], answers)
    (found,) = without_idle_selectors([given], seen, np.arange(ROWS), fidelity=0.98)
    return found


def test_a_selector_that_knows_better_than_the_odds_stays() -> None:
    given = head(doubts=0)
    assert chosen(given) is given


def test_a_selector_that_doubts_what_is_right_goes() -> None:
    found = chosen(head(doubts=2))
    assert not found.score_weight.any()
    assert not found.score_bias.any()


def test_without_its_selector_a_head_answers_the_same_and_is_as_sure_as_its_odds() -> None:
    given = head(doubts=0)
    features = np.random.default_rng(0).normal(size=(20, CLASSES)).astype(np.float32)
    answers, odds = HeadFunction(given.without_selector())(features)
    np.testing.assert_array_equal(answers, HeadFunction(given)(features)[0])
    highest = torch.from_numpy(answers).softmax(dim=1).amax(dim=1)
    np.testing.assert_allclose(odds, torch.logit(highest), rtol=1e-4, atol=1e-4)


def test_a_selector_that_only_adds_a_constant_goes() -> None:
    layer, selector = torch.nn.Linear(CLASSES, CLASSES), Selector(CLASSES)
    with torch.no_grad():
        selector.score.bias.fill_(1.0)
    given = Head.of(layer, selector)
    plain = chosen(given)
    assert not plain.score_bias.any()
    features = torch.randn(20, CLASSES, generator=GENERATOR).numpy()
    np.testing.assert_allclose(HeadFunction(given)(features)[1], HeadFunction(plain)(features)[1] + 1.0, rtol=1e-5)


def test_each_lookup_is_judged_by_what_it_saw_itself() -> None:
    features, answers = rows()
    blind, helped, hindered = torch.randn(ROWS, CLASSES, generator=GENERATOR), features, features.clone()
    constant = replace(head(doubts=0).without_selector(), score_bias=torch.ones(1))
    given = [head(doubts=2), head(doubts=0), constant]
    seen = apply_heads(given, [blind, helped, hindered], answers)
    found = without_idle_selectors(given, seen, np.arange(ROWS), fidelity=0.98)
    assert [one is kept for one, kept in zip(found[1:], given[1:], strict=True)] == [True, False]


def test_only_the_rows_that_were_given_count() -> None:
    given = head(doubts=0)
    features, answers = rows()
    seen = apply_heads([given], [features], answers)
    easy = np.flatnonzero(features.argmax(dim=1).numpy() != 0)
    (found,) = without_idle_selectors([given], seen, easy, fidelity=0.98)
    assert not found.score_weight.any()
