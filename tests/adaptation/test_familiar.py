"""Looks: what came before is not strange, brighter inputs are, and another mix of classes is not a change of looks."""

import torch
from torch import Tensor

from latebind.adaptation.familiar import FEWEST, Familiar, looks

CLASSES = 3


def pictures(count: int, answer: int, seed: int, *, brighter: float = 0.0) -> Tensor:
    """Looks of pictures of which each class has its own brightness."""
    noise = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    shade = torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed + 1)) * 0.5
    return looks([noise + shade + 0.2 * answer + brighter])


def learned() -> Familiar:
    seen = torch.cat([pictures(200, 0, 1), pictures(60, 1, 2), pictures(20, 2, 3)])
    answers = torch.cat([torch.full((n,), answer) for answer, n in enumerate((200, 60, 20))])
    found = Familiar.of(seen, answers, classes=CLASSES)
    assert found is not None
    return found


def share(found: Familiar, seen: Tensor, answer: int) -> float:
    return float(found.strange(seen, torch.full((len(seen),), answer)).float().mean())


def test_few_samples_are_nothing_to_compare_with() -> None:
    seen = pictures(FEWEST - 1, 0, 1)
    assert Familiar.of(seen, torch.zeros(len(seen), dtype=torch.int64), classes=CLASSES) is None


def test_what_looks_as_before_is_seldom_strange_whichever_class_dominates() -> None:
    found = learned()
    assert all(share(found, pictures(2_000, answer, 9), answer) < 0.12 for answer in range(CLASSES))


def test_brighter_pictures_are_mostly_strange() -> None:
    assert share(learned(), pictures(500, 0, 9, brighter=1.5), 0) > 0.7


def test_looks_are_mean_and_spread_of_each_input() -> None:
    found = looks([torch.tensor([[1.0, 3.0]]), torch.tensor([[[4, 4], [4, 8]]])])
    torch.testing.assert_close(found, torch.tensor([[2.0, 1.0, 5.0, 3.0**0.5]]))


def test_a_class_that_never_came_is_taken_to_look_as_all_do() -> None:
    seen = torch.cat([pictures(200, 0, 1, brighter=5.0), pictures(60, 1, 2, brighter=5.0)])
    found = Familiar.of(seen, torch.arange(2).repeat_interleave(torch.tensor([200, 60])), classes=CLASSES)
    assert found is not None
    assert share(found, pictures(500, 1, 9, brighter=5.0), 2) < 0.2


def test_each_number_is_measured_by_its_own_spread_within_a_class() -> None:
    answers = torch.arange(400) % 2
    seen = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1_000.0])
    seen[:, 0] += 10.0 * answers
    found = Familiar.of(seen, answers, classes=2)
    assert found is not None
    assert found.strange(seen, answers).float().mean() < 0.1
    assert found.strange(seen + torch.tensor([8.0, 0.0]), answers).all()


def test_where_all_samples_were_alike_any_other_is_strange() -> None:
    answers = torch.zeros(FEWEST, dtype=torch.int64)
    found = Familiar.of(torch.zeros(FEWEST, 2), answers, classes=1)
    assert found is not None
    assert not found.strange(torch.zeros(FEWEST, 2), answers).any()
    assert found.strange(torch.ones(FEWEST, 2), answers).all()


def test_an_input_may_be_one_number_in_each_row() -> None:
    assert looks([torch.tensor([2.0, 3.0])]).tolist() == [[2.0, 0.0], [3.0, 0.0]]
