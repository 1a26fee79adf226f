"""How far a backend's outputs are from eager's: numbers by their difference, infinities and NaNs by being the same."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.agreement import (
    Agreement,
    Answered,
    Reference,
    agreed_magnitude,
    answered,
    relative_error,
)
from latebind.program.eager import in_eager
from latebind.program.graph import Graph, Node, TensorType, Value, Weight
from latebind.program.trial_rows import Trial


def graph_of(*calls: tuple[str] | tuple[str, float]) -> Graph:
    """Return a graph that does this to a number, one after another: an operator's name, and perhaps a number."""
    type_ = TensorType("float32", (None, 1))
    nodes = tuple(
        Node(f"n{place}", f"aten.{name}", (Value(f"n{place - 1}" if place else "x"), *numbers), (), type_)
        for place, (name, *numbers) in enumerate(calls)
    )
    return Graph((TensorSpec("x", "float32", (1,)),), nodes, (("y", nodes[-1].name),))


NEGATIVE, ABSOLUTE = graph_of(("neg.default",)), graph_of(("abs.default",))
CANCELS = graph_of(("add.Tensor", 1e8), ("sub.Tensor", 1e8))  # 0 of 1, where the exact result is 1


def times(number: float) -> Graph:
    return graph_of(("mul.Tensor", number))


def less(number: float) -> Graph:
    return graph_of(("sub.Tensor", number))


def reference(graph: Graph) -> Reference:
    return Reference(graph, {}, 1e-5)


def asked(graph: Graph, *numbers: float, magnitude: float = 1.0) -> Answered:
    rows = torch.tensor(numbers)[:, None]
    return answered(in_eager(graph, {}), Trial("", magnitude, (rows,)))


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 4.4], [1.0, 4.0], 0.1),
        ([1.0, nan, inf], [1.0, nan, inf], 0.0),
        ([0.0, 1.0], [nan, 1.0], inf),
        ([nan, 1.0], [0.0, 1.0], inf),
        ([inf, 1.0], [-inf, 1.0], inf),
        ([3.4028234663852886e38, 1.0], [inf, 1.0], inf),
        ([inf, 1.0], [nan, 1.0], inf),
        ([], [], 0.0),
    ],
)
def test_an_error_is_relative_to_the_largest_number_and_odd_numbers_must_agree(
    found: list[float], expected: list[float], error: float
) -> None:
    assert relative_error((torch.tensor(found),), (torch.tensor(expected),)) == pytest.approx(error)


def test_another_shape_type_or_number_of_outputs_is_no_match() -> None:
    whole = torch.zeros(2, 3)
    assert relative_error((whole,), (whole, whole)) == inf
    assert relative_error((whole,), (whole.flatten(),)) == inf
    assert relative_error((whole,), (whole.double(),)) == inf


@pytest.mark.parametrize(("answer", "wrong"), [(0.0, False), (1.0, False), (-10.0, False), (100.0, True), (nan, True)])
def test_where_numbers_cancel_an_answer_may_be_some_times_as_far_off_as_eager_itself(
    answer: float, wrong: bool
) -> None:
    given = asked(CANCELS, 1.0)
    assert given.alone[0].item() == 0.0
    assert reference(CANCELS).wrong(lambda x: (torch.full((1, 1), answer),), given) == wrong


@pytest.mark.parametrize("answer", [0.0, 3e38, -inf, nan])
def test_where_eager_overflows_no_other_answer_is_excused_as_rounding(answer: float) -> None:
    given = asked(times(1e30), 1e9)
    assert reference(times(1e30)).wrong(lambda x: (torch.full((1, 1), answer),), given)


def test_an_overflow_in_the_graph_that_the_module_does_not_have_excuses_no_other_answer() -> None:
    type_ = TensorType("float32", (None, 1))
    nodes = (
        Node("large", "aten.mul.Tensor", (Value("x"), Weight("w")), (), type_),  # infinite from 1e9 on
        Node("none", "aten.reciprocal.default", (Value("large"),), (), type_),
        Node("y", "aten.mul.Tensor", (Value("none"), Weight("w")), (), type_),
    )
    graph = Graph((TensorSpec("x", "float32", (1,)),), nodes, (("y", "y"),))
    judge = Reference(graph, {"w": torch.tensor([[1e30]])}, 1e-5)
    given = answered(lambda x: (x.reciprocal(),), Trial("", 1e12, (torch.tensor([[1e12]]),)))
    assert not judge.wrong(lambda x: (x.reciprocal(),), given)
    assert judge.wrong(lambda x: (torch.zeros(1, 1),), given)


@pytest.mark.parametrize(("answer", "wrong"), [(inf, False), (nan, False), (1.0, True)])
def test_what_eager_answers_to_rows_together_and_alone_is_right_both_ways(answer: float, wrong: bool) -> None:
    given = replace(asked(NEGATIVE, 1.0), expected=(torch.tensor([[inf]]),), alone=(torch.tensor([[nan]]),))
    assert reference(NEGATIVE).wrong(lambda x: (torch.full((1, 1), answer),), given) == wrong


MAGNITUDES = (2.0, 1e6, 1e9, 1e12, 1e15, 3e38, inf)


def agreed(graph: Graph, other_from: float, *, usual: float = 2.0) -> float | None:
    """Return up to which magnitude something does as the graph, which does otherwise from one magnitude on."""
    answers = [asked(graph, size, magnitude=size) for size in MAGNITUDES]

    def run(x: Tensor) -> tuple[Tensor]:
        (found,) = in_eager(graph, {})(x)
        return (torch.where(x < other_from, found, -1.0),)

    return agreed_magnitude(run, reference(graph), answers, usual)


@pytest.mark.parametrize(
    ("other_from", "sure"),
    [(2.0, None), (1e6, None), (1e9, None), (1e12, None), (1e15, 1e9), (3e38, 1e12), (inf, 1e15)],
)
def test_numbers_are_sure_up_to_the_magnitude_before_the_last_that_agreed(
    other_from: float, sure: float | None
) -> None:
    assert agreed(ABSOLUTE, other_from) == sure


def test_no_limit_keeps_small_numbers_out_wherever_they_were_drawn() -> None:
    answers = [asked(ABSOLUTE, 1e-40 if size == 1e15 else size, magnitude=size) for size in MAGNITUDES]

    def without_subnormal(x: Tensor) -> tuple[Tensor]:
        return (torch.where(x.abs() < 1e-38, 1.0, x.abs()),)

    assert agreed_magnitude(without_subnormal, reference(ABSOLUTE), answers, 2.0) is None


def test_what_agrees_on_everything_is_sure_of_any_number() -> None:
    answers = [asked(ABSOLUTE, size, magnitude=size) for size in MAGNITUDES]
    assert agreed_magnitude(lambda x: (x.abs(),), reference(ABSOLUTE), answers, 2.0) == inf


def test_numbers_that_overflow_inside_of_the_network_are_not_sure_though_they_agreed() -> None:
    assert agreed(times(1e25), inf) == 1e9


def test_numbers_are_sure_only_where_they_are_far_above_usual_ones() -> None:
    assert agreed(ABSOLUTE, 1e15, usual=1e7) == 1e9
    assert agreed(ABSOLUTE, 1e15, usual=1e8) is None


@pytest.mark.parametrize(
    ("numbers", "whole", "each"), [((1.0, 2.0), True, True), ((2.0, 1.0), True, False), ((1.0, 3.0), False, False)]
)
def test_stages_of_which_each_undoes_what_another_did_wrong_do_not_agree(
    numbers: tuple[float, float], whole: bool, each: bool
) -> None:
    stages = [lambda x, number=number: (x - number,) for number in numbers]
    found = Agreement((), (asked(less(3.0), 5.0, 7.0),), reference(less(3.0)), None)
    assert found.holds(stages, (), 1.0) == whole
    assert found.holds(stages, (less(1.0), less(2.0)), 1.0) == each
