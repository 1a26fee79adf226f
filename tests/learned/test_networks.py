"""Predictors take activations of any shape; a lookup is one module."""

import numpy as np
import pytest
import torch
from torch import nn

from latebind.domain.errors import ConfigError
from latebind.learned.compiled import export_features
from latebind.learned.head import Floats, Head, HeadFunction
from latebind.learned.networks import (
    KINDS,
    LIGHT,
    PLAIN,
    POOLED,
    Predictor,
    Selector,
    kinds_for,
    make_predictor,
)
from latebind.program.eager import in_eager

F = np.float32


def random_features(rows: int, width: int) -> Floats:
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize("shape", [(16, 32, 32), (3, 5, 7), (8, 100, 60), (4, 1, 1), (20, 12), (50,)])
def test_any_activation_gives_one_answer_a_row(shape: tuple[int, ...]) -> None:
    for kind in kinds_for(shape):
        predictor = make_predictor(shape, 7, kind).eval()
        head = Head.of(predictor.answer, Selector(7))
        with torch.inference_mode():
            features = predictor.features(torch.randn(3, *shape)).numpy()
        answers, scores = HeadFunction(head)(features)
        assert answers.shape == (3, 7)
        assert scores.shape == (3,)


def test_only_images_have_kinds_with_convolutions() -> None:
    assert kinds_for((16, 32, 32)) == KINDS
    assert kinds_for((20, 12)) == kinds_for((50,)) == (PLAIN,)
    wanted = ("conv(3,1)", "residual", "fc(8)", "plain")
    assert kinds_for((16, 32, 32), wanted) == wanted
    assert kinds_for((50,), wanted) == ("fc(8)", "plain")


@pytest.mark.parametrize("kind", ["fc(16)", "pool(32)", "conv(3,1)", "conv(5,2)"])
def test_the_networks_of_the_table_take_images(kind: str) -> None:
    network = make_predictor((4, 9, 6), 5, kind).eval()
    assert network(torch.randn(3, 4, 9, 6)).shape == (3, 5)


@pytest.mark.parametrize("kind", ["fc", "fc(0)", "fc(3,1)", "conv(3)", "conv(0,1)", "huge", "pool(1e9)"])
def test_a_network_that_is_not_known_is_refused_with_those_that_are(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"use residual, deep, light, plain, pooled, fc\(h\)"):
        make_predictor((4, 8, 8), 5, kind)


def test_a_selector_that_has_learned_nothing_gives_the_odds_of_the_highest_class() -> None:
    head = HeadFunction(Head.of(torch.nn.Linear(3, 4), Selector(4)))
    answers, scores = head(random_features(20, 3))
    highest = torch.from_numpy(answers).softmax(dim=1).amax(dim=1)
    np.testing.assert_allclose(scores, torch.logit(highest), rtol=1e-4, atol=1e-4)
    assert np.isfinite(head(np.full((1, 3), 1e4, np.float32))[1]).all()


@pytest.mark.parametrize("classes", [2, 10, 1_000])
def test_a_head_at_work_gives_what_layer_and_selector_gave_in_training(classes: int) -> None:
    layer, selector = torch.nn.Linear(16, classes), Selector(classes)
    torch.nn.init.normal_(selector.score.weight)
    features = random_features(50, 16)
    with torch.inference_mode():
        wanted = layer(torch.from_numpy(features))
        sure = selector(wanted)
    answers, scores = HeadFunction(Head.of(layer, selector))(features)
    np.testing.assert_allclose(answers, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, sure, rtol=1e-4, atol=1e-4)


def test_a_head_may_have_a_hidden_layer_beside() -> None:
    layer = torch.nn.Linear(3, 4)
    beside = (torch.randn(5, 3), torch.randn(5), torch.randn(4, 5))
    given = Head.of(layer, Selector(4), beside=beside)
    features = random_features(20, 3)
    with torch.inference_mode():
        rows = torch.from_numpy(features)
        wanted = layer(rows) + torch.relu(rows @ beside[0].T + beside[1]) @ beside[2].T
    np.testing.assert_allclose(HeadFunction(given)(features)[0], wanted, rtol=1e-4, atol=1e-5)
    again = Head.from_tensors(given.tensors())
    np.testing.assert_array_equal(again.beside_answer, beside[2])
    with pytest.raises(ValueError, match="do not form a head"):
        Head.from_tensors({**given.tensors(), "beside_bias": np.zeros(4, np.float32)})


def test_tensors_that_are_no_head_are_refused() -> None:
    tensors = Head.of(torch.nn.Linear(3, 4), Selector(4)).tensors()
    np.testing.assert_array_equal(Head.from_tensors(tensors).answer_weight, tensors["answer_weight"])
    others = {"answer_bias": np.zeros(5, F), "score_weight": np.ones((2, 64), F), "score_bias": np.array([np.inf], F)}
    for name, other in others.items():
        with pytest.raises(ValueError, match="head"):
            Head.from_tensors({**tensors, name: other})
    with pytest.raises(ValueError, match="head"):
        Head.from_tensors({"answer_weight": tensors["answer_weight"]})


IMAGE, SEQUENCE = (8, 12, 12), (20, 12)


def drawn(shape: tuple[int, ...], kind: str, seed: int) -> Predictor:
    """A predictor that has learned: no batch norm is as it was made."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        predictor = make_predictor(shape, 5, kind).eval()
        for part in predictor.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.uniform_(part.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
                nn.init.uniform_(part.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return predictor


def check_features(shape: tuple[int, ...], kind: str) -> None:
    rows = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    for seed in range(2):
        predictor = drawn(shape, kind, seed)
        exported = export_features(predictor, shape)
        with torch.inference_mode():
            (found,) = in_eager(exported.graph, exported.weights)(rows)
            torch.testing.assert_close(found, predictor.features(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LIGHT, POOLED, "fc(8)", "conv(3,2)"])
def test_each_of_two_of_a_kind_has_its_own_features(kind: str) -> None:
    check_features(IMAGE, kind)
