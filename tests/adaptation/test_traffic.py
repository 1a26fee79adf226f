"""The traffic of late: bounded samples, what looks strange beside those before, and whether `build` speaks for it."""

import torch
from torch import Tensor

from latebind.adaptation.traffic import FEWEST_KNOWN, Familiar, Kept, Sample, Window, looks
from latebind.learned.head import Head
from latebind.learned.samples import Samples
from latebind.learned.stored import Rows

CLASSES = 3
SURE = 0.0  # less than the score of a head that sees one class at 1, 0.31; at 0.5 it is -0.19
HARD = 2  # a class that the lookup knows half of the time


def sample(time: float) -> Sample:
    features = torch.tensor([time, 1.0]).bfloat16()
    answer = int(time) % 3
    answers = torch.nn.functional.one_hot(torch.tensor(answer), 3).bfloat16()
    return Sample(time, {"a": features}, answers, answer, torch.tensor([time, 1.0]), 1.0 + time)


def filled(count: int, *, capacity: int = 100, seconds: float = 1e6) -> Window:
    window = Window(capacity, seconds)
    for number in range(count):
        window.add(sample(float(number)))
    return window


def times(window: Window) -> list[float]:
    recent = window.recent()
    assert recent is not None
    found: list[float] = recent.times.tolist()
    return found


def test_what_is_too_old_goes_and_so_does_the_oldest_where_there_is_no_room() -> None:
    assert times(filled(10, seconds=3.0)) == [6.0, 7.0, 8.0, 9.0]
    assert times(filled(10, capacity=3)) == [7.0, 8.0, 9.0]


def pictures(count: int, answer: int, seed: int, *, brighter: float = 0.0) -> Tensor:
    """Looks of pictures of which each class has its own brightness."""
    noise = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    shade = torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed + 1)) * 0.5
    return looks(Samples((noise + shade + 0.2 * answer + brighter,)))


def learned() -> Familiar:
    seen = torch.cat([pictures(200, 0, 1), pictures(60, 1, 2), pictures(20, 2, 3)])
    answers = torch.cat([torch.full((n,), answer) for answer, n in enumerate((200, 60, 20))])
    found = Familiar.of(seen, answers, classes=CLASSES)
    assert found is not None
    return found


def share(found: Familiar, seen: Tensor, answer: int) -> float:
    return float(found.strange(seen, torch.full((len(seen),), answer)).float().mean())


def test_what_looks_as_before_is_seldom_strange_whichever_class_dominates() -> None:
    found = learned()
    assert all(share(found, pictures(2_000, answer, 9), answer) < 0.12 for answer in range(CLASSES))


def test_brighter_pictures_are_mostly_strange() -> None:
    assert share(learned(), pictures(500, 0, 9, brighter=1.5), 0) > 0.7


def test_each_number_is_measured_by_its_own_spread_within_a_class() -> None:
    answers = torch.arange(400) % 2
    seen = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1_000.0])
    seen[:, 0] += 10.0 * answers
    found = Familiar.of(seen, answers, classes=2)
    assert found is not None
    assert found.strange(seen, answers).float().mean() < 0.1
    assert found.strange(seen + torch.tensor([8.0, 0.0]), answers).all()


def head() -> Head:
    answer = torch.nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        answer.weight.copy_(torch.eye(CLASSES))
        answer.bias.zero_()
    return Head.of(answer)


def kept_rows(shares: list[float], *, known: float = 1.0, count: int = 400) -> Rows:
    """Features that tell the class, except of half of the hard class and of a share 1 - `known` of all."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=generator)
    lost = (classes == HARD) & (torch.rand(count, generator=generator) < 0.5)
    lost |= torch.rand(count, generator=generator) > known
    told = torch.where(lost, (classes + 1) % CLASSES, classes)
    features = torch.nn.functional.one_hot(told, CLASSES).bfloat16()
    return Rows({"a": features}, torch.nn.functional.one_hot(classes, CLASSES).bfloat16(), classes)


KEPT = kept_rows([1.0, 1.0, 1.0])


def test_traffic_that_lookups_know_far_less_of_is_another() -> None:
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(kept_rows([1.0, 1.0, 0.0], known=0.95))
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(kept_rows([1.0, 1.0, 0.0], known=0.75))


def test_traffic_that_lookups_are_seldom_sure_of_is_another() -> None:
    weak = kept_rows([1.0, 1.0, 0.0])
    weak = Rows({"a": weak.features["a"] * 0.5}, weak.answers, weak.classes)  # the same answers, less surely
    assert Kept.of(KEPT, {"a": (head(), -5.0)}).speak_for(weak)
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(weak)
    harder = kept_rows([0.1, 0.0, 0.9])
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(harder)


def test_few_samples_prove_nothing() -> None:
    strange = kept_rows([1.0, 1.0, 0.0], known=0.0, count=FEWEST_KNOWN - 1)
    assert Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(strange)
    assert not Kept.of(KEPT, {"a": (head(), SURE)}).speak_for(kept_rows([1.0, 1.0, 0.0], known=0.0, count=FEWEST_KNOWN))
