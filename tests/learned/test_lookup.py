"""Several lookups at one boundary: asked one after another, each for the rows that the one before has missed."""

import numpy as np
import torch
from torch import Tensor

from latebind.learned.head import Head
from latebind.learned.lookup import Lookup, LookupFunction, Promises
from latebind.learned.reading import Reading

CLASSES = 3


def head(scale: float) -> Head:
    """Answers with the largest of its features, the surer the larger the scale."""
    answer = torch.nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        answer.weight.copy_(scale * torch.eye(CLASSES))
        answer.bias.zero_()
    return Head.of(answer)


class Asked:
    """Features are columns of the activation; notes how many rows it was asked for."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows: list[int] = []

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        (activation,) = inputs
        self.rows.append(len(activation))
        return (activation[:, self.first : self.first + CLASSES].contiguous(),)


def lookup(quick: Asked, able: Asked) -> Lookup:
    functions = {"0-quick": LookupFunction(quick, head(1.0)), "0-able": LookupFunction(able, head(1.0))}
    return Lookup(functions, {"0-quick": 2.0, "0-able": 2.0})


SURE, UNSURE = [5.0, 0.0, 0.0], [0.1, 0.0, 0.0]
SURE_OF_THE_SECOND = [0.0, 5.0, 0.0]


def test_only_what_the_quick_one_missed_is_looked_up_by_the_able_one() -> None:
    quick, able = Asked(0), Asked(CLASSES)
    rows = torch.tensor([SURE + UNSURE, UNSURE + SURE_OF_THE_SECOND, UNSURE + UNSURE, UNSURE + SURE])
    answers, hits = lookup(quick, able)(rows)
    assert hits.tolist() == [True, True, False, True]
    assert answers[hits].argmax(axis=1).tolist() == [0, 1, 0]
    assert (quick.rows, able.rows) == ([4], [3])


def test_a_version_may_leave_one_of_them_out() -> None:
    quick, able = Asked(0), Asked(CLASSES)
    adopted = lookup(quick, able).with_heads({"0-able": (head(1.0), 2.0), "1-elsewhere": (head(1.0), 0.0)})
    assert adopted is not None
    _, hits = adopted(torch.tensor([SURE + UNSURE, UNSURE + SURE]))
    assert hits.tolist() == [False, True]
    assert quick.rows == []


def test_new_heads_and_thresholds_take_the_place_of_old_ones() -> None:
    found = lookup(Asked(0), Asked(CLASSES))
    adopted = found.with_heads({"0-quick": (head(100.0), 2.0)})
    assert adopted is not None
    rows = torch.tensor([UNSURE + UNSURE])
    assert adopted(rows)[1].tolist() == [True]  # what was unsure is a hundred times surer
    assert found(rows)[1].tolist() == [False]
    np.testing.assert_allclose(adopted(rows)[0], [[10.0, 0.0, 0.0]], rtol=1e-6)


def test_rows_are_asked_each_at_its_own_thresholds_by_every_lookup() -> None:
    strict, lax, none = {"0-quick": 9.0, "0-able": 2.0}, {"0-quick": 2.0, "0-able": -9.0}, dict[str, float]()
    rows = torch.tensor([SURE + UNSURE, SURE + SURE, UNSURE + UNSURE, UNSURE + UNSURE, SURE + SURE])
    quick, able = Asked(0), Asked(CLASSES)
    _, hits = lookup(quick, able)(rows, (), [strict, strict, lax, strict, none])
    assert hits.tolist() == [False, True, True, False, False]
    assert (quick.rows, able.rows) == ([5], [4])  # nobody could hit at the last row's level


def test_a_level_that_a_version_lacks_is_asked_as_the_next_surer_one() -> None:
    served = Promises((1.0, 0.99, 0.97, 0.95), ({}, {"a": 3.0}, {"a": 2.0}, {"a": 1.0}))
    at_target, at_floor = {"a": 2.5}, {"a": 1.5}
    assert served.of_version({0.97: at_target, 0.95: at_floor}) == ({}, {}, at_target, at_floor)
    assert served.of_version({0.97: at_target, 0.9: at_floor}) == ({}, {}, at_target, at_target)
    assert [served.down_to(least) for least in (0.0, 0.96, 0.97, 1.0)] == [4, 3, 3, 1]


def test_at_overload_a_version_is_asked_as_at_the_level_whose_thresholds_keep_the_promise() -> None:
    served = Promises((1.0, 0.99, 0.97, 0.95, 0.95), ({}, {"a": 3.0}, {"a": 2.0}, {"a": 1.0}, {"a": 2.0}), 2)
    at_target, at_floor = {"a": 2.5}, {"a": 1.5}
    assert served.of_version({0.97: at_target, 0.95: at_floor}) == ({}, {}, at_target, at_floor, at_target)
    assert served.of_version({0.99: at_target}) == ({}, at_target, at_target, at_target, at_target)
    assert [served.down_to(least) for least in (0.0, 0.95, 0.96, 1.0)] == [4, 4, 3, 1]


def test_what_takes_activations_whole_is_not_given_what_is_read_of_them() -> None:
    rows = torch.tensor([[UNSURE, SURE], [UNSURE, UNSURE]])  # two words of three numbers
    second = LookupFunction(lambda rows: (rows[:, 1].contiguous(),), head(1.0), whole=True)
    functions = {"0-read": LookupFunction(Asked(0), head(1.0)), "0-whole": second}
    found = Lookup(functions, {"0-read": 9.0, "0-whole": 2.0}, Reading((6,), (1,)))
    assert found(rows)[1].tolist() == [True, False]
    assert found.twin()(rows)[1].tolist() == [True, False]
    adopted = found.with_heads({"0-whole": (head(100.0), 2.0)})
    assert adopted is not None
    assert adopted(rows)[1].tolist() == [True, True]
