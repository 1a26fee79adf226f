"""Predictors of a kind are traced once, and each still computes with its own weights."""

import pytest
import torch
from torch import nn

from latebind.learned.compiled import export_features
from latebind.learned.networks import LIGHT, PLAIN, POOLED, Predictor, make_predictor
from latebind.program.rebuild import run_eagerly

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
            (found,) = run_eagerly(exported.graph, exported.weights, (rows,))
            torch.testing.assert_close(found, predictor.features(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LIGHT, POOLED, "fc(8)", "conv(3,2)"])
def test_each_of_two_of_a_kind_has_its_own_features(kind: str) -> None:
    check_features(IMAGE, kind)


def test_so_has_each_of_one_kind_on_another_shape() -> None:
    for shape in (IMAGE, SEQUENCE, (3, *IMAGE[1:])):
        check_features(shape, PLAIN)


def test_nobodys_draws_are_changed_by_a_trace() -> None:
    torch.manual_seed(3)
    first = torch.randn(2)
    predictor = make_predictor((7,), 5, PLAIN)
    torch.manual_seed(3)
    export_features(predictor, (7,))
    assert torch.equal(torch.randn(2), first)
