"""Rows of `build` speak for traffic that lookups know as well, whatever its mix of classes, and for no other."""

import torch

from latebind.adaptation.trust import FEWEST, Kept
from latebind.learned.head import Head
from latebind.learned.stored import Rows

CLASSES = 3
SURE = 0.0  # less than the score of a head that sees one class at 1, 0.31; at 0.5 it is -0.19
HARD = 2  # a class that the lookup knows half of the time


def head() -> Head:
    answer = torch.nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        answer.weight.copy_(torch.eye(CLASSES))
        answer.bias.zero_()
    return Head.of(answer)


def rows(shares: list[float], *, known: float = 1.0, count: int = 400) -> Rows:
    """Features that tell the class, except of half of the hard class and of a share 1 - `known` of all."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
    lost = (classes == HARD) & (torch.rand(count, generator=generator) < 0.5)
    lost |= torch.rand(count, generator=generator) > known
    told = torch.where(lost, (classes + 1) % CLASSES, classes)
    features = torch.nn.functional.one_hot(told, CLASSES).bfloat16()
    return Rows({"a": features}, torch.nn.functional.one_hot(classes, CLASSES).bfloat16(), classes)


KEPT = rows([1.0, 1.0, 1.0])


def test_a_mix_of_harder_classes_is_no_reason_for_distrust() -> None:
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(rows([0.1, 0.0, 0.9]))


def test_traffic_that_lookups_know_far_less_of_is_another() -> None:
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(rows([1.0, 1.0, 0.0], known=0.95))
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(rows([1.0, 1.0, 0.0], known=0.75))


def test_traffic_that_lookups_are_seldom_sure_of_is_another() -> None:
    weak = rows([1.0, 1.0, 0.0])
    weak = Rows({"a": weak.features["a"] * 0.5}, weak.answers, weak.classes)  # the same answers, less surely
    assert Kept.of(KEPT, {"a": (head(), -5.0)}).speak_for(weak)
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(weak)
    harder = rows([0.1, 0.0, 0.9])
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(harder)


def test_few_samples_prove_nothing() -> None:
    strange = rows([1.0, 1.0, 0.0], known=0.0, count=FEWEST - 1)
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(strange)
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(rows([1.0, 1.0, 0.0], known=0.0, count=FEWEST))


def test_each_lookup_must_know_the_traffic() -> None:
    both = rows([1.0, 1.0, 0.0])
    kept = Rows({"a": KEPT.features["a"], "b": KEPT.features["a"]}, KEPT.answers, KEPT.classes)
    traffic = Rows({"a": both.features["a"], "b": both.features["a"].flip(1)}, both.answers, both.classes)
    assert not Kept.of(kept, {"a": (head(), SURE), "b": (head(), SURE)}).speak_for(traffic)
