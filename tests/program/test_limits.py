"""Which whole numbers the inputs of a module may have, found by intervals."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.model import TensorSpec
from latebind.program.export import export
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.ranges import Interval, Limits, Ranges, find_limits
from tests.program.modules import Translator, TwoOutputs

WIDTH = 5
TABLE = torch.randn(20, 3)
IDS = torch.ones(2, 4, dtype=torch.int64)

Operation = Callable[[Tensor], Tensor]


class Does(nn.Module):
    """What a function does to the row of numbers 0 to 4 and ids."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation
        self.register_buffer("table", TABLE)

    def forward(self, ids: Tensor) -> Tensor:
        return self._operation(ids)


def limits_of(operation: Operation, *, one_hot: bool = False) -> Limits:
    exported = export(Does(operation), {"ids": IDS})
    return find_limits(exported.graph, exported.weights, one_hot=one_hot)


def test_words_are_limited_by_the_table_that_they_are_looked_up_in() -> None:
    words = export(Translator(), {"words": torch.randint(0, 20, (2, 5))})
    limited = find_limits(words.graph, words.weights).applied(words.graph.inputs)
    assert [(spec.least, spec.limit) for spec in limited] == [(0, 20)]
    assert tuple(spec.unlimited() for spec in limited) == words.graph.inputs
    numbers = export(TwoOutputs(), (torch.randn(2, 6),))
    assert find_limits(numbers.graph, numbers.weights) == Limits({}, ())


def row(ids: Tensor) -> Tensor:
    return ids.float().cumsum(1)


@pytest.mark.parametrize(
    ("operation", "least", "most"),
    [
        (lambda ids: torch.gather(row(ids), 1, ids), 0, 3),
        (lambda ids: row(ids).scatter(1, ids, 1.0), 0, 3),
        (lambda ids: TABLE[ids].sum(2), -20, 19),
        (lambda ids: row(ids).index_select(1, ids[0]), 0, 3),
        (lambda ids: nn.functional.embedding(ids, TABLE).sum(2), 0, 19),
        (lambda ids: nn.functional.embedding(ids - 1, TABLE).sum(2), 1, 20),
        (lambda ids: nn.functional.embedding(ids // 10, TABLE).sum(2), 0, 199),
        (lambda ids: nn.functional.embedding(ids.flip(1)[:, :2].unsqueeze(1), TABLE).sum(3), 0, 19),
        (lambda ids: nn.functional.embedding(ids.clamp(max=19), TABLE).sum(2), 0, (1 << 63) - 1),
        (lambda ids: nn.functional.embedding(ids.abs().clamp(max=19), TABLE).sum(2), 1 - (1 << 63), (1 << 63) - 1),
        (lambda ids: nn.functional.embedding(torch.fmod(ids, 20), TABLE).sum(2), 0, (1 << 63) - 1),
        (lambda ids: nn.functional.embedding(ids.div(10, rounding_mode="trunc"), TABLE).sum(2), -9, 199),
        (lambda ids: nn.functional.embedding(ids & -1, TABLE).sum(2), 0, 19),
    ],
)
def test_an_index_may_be_what_finds_something(operation: Operation, least: int, most: int) -> None:
    (found,) = limits_of(operation).allowed.values()
    assert (found.least, found.most) == (least, most)


@pytest.mark.parametrize(
    "operation",
    [
        lambda ids: nn.functional.embedding(ids % 20, TABLE).sum(2),
        lambda ids: nn.functional.embedding(ids.clamp(0, 19), TABLE).sum(2),
        lambda ids: nn.functional.embedding(ids & 15, TABLE).sum(2),
        lambda ids: nn.functional.embedding(ids.abs().minimum(torch.tensor(19)).maximum(torch.tensor(0)), TABLE).sum(2),
        lambda ids: torch.gather(row(ids), 1, ids.argmax(1, keepdim=True)),
        lambda ids: torch.gather(row(ids), 1, ids.topk(2, 1).indices),
        lambda ids: torch.gather(row(ids), 1, ids.argsort(dim=1, stable=True)),
        lambda ids: ids // 7 + ids % 3,
    ],
)
def test_an_index_that_always_finds_something_limits_nothing(operation: Operation) -> None:
    assert limits_of(operation) == Limits({}, ())


@pytest.mark.parametrize(
    "operation",
    [
        lambda ids: nn.functional.embedding((ids.float() * 2).long(), TABLE).sum(2),
        lambda ids: ids // ids.flip(1),
        lambda ids: 7 % ids,
    ],
)
def test_what_no_limit_makes_safe_is_named(operation: Operation) -> None:
    found = limits_of(operation)
    assert not found.allowed
    assert len(found.open) == 1


def test_a_comparison_with_all_classes_limits_only_where_it_stands_for_one_hot() -> None:
    assert limits_of(lambda ids: nn.functional.one_hot(ids, 7)) == Limits({}, ())
    (found,) = limits_of(lambda ids: nn.functional.one_hot(ids, 7), one_hot=True).allowed.values()
    assert (found.least, found.most) == (0, 6)


@pytest.mark.parametrize(
    ("given", "clamped"), [((0, 0), (25, 25)), ((0, 27), (25, 27)), ((26, 99), (26, 30)), ((40, 99), (30, 30))]
)
def test_a_clamp_moves_numbers_to_its_nearest_end(given: tuple[int, int], clamped: tuple[int, int]) -> None:
    node = Node("y", "aten.clamp.default", (Value("ids"), 25, 30), (), TensorType("int64", (None, 4)))
    graph = Graph((TensorSpec("ids", "int64", (4,)),), (node,), (("y", "y"),))
    assert Ranges(graph, {}).find({"ids": Interval(*given)})["y"] == Interval(*clamped)
