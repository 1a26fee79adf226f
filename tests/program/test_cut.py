"""Where networks are cut, with what is carried beside an activation; `test_backends` has what their stages compute."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.cifar10.resnet18 import resnet18
from latebind.domain.model import TensorSpec
from latebind.program.backends import compile_stages, run_chain
from latebind.program.build import build_program
from latebind.program.cut import (
    ENTRY,
    cut_points,
    find_carries,
    fusion_safe_points,
    has_entry,
    join_by_bytes,
    join_by_seconds,
    split,
    with_carries,
)
from latebind.program.eager import in_eager
from latebind.program.export import export, run_module
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.load import load_program
from latebind.program.verify import relative_error
from tests.program.modules import (
    WORDS,
    Branchy,
    Decoder,
    Products,
    Reader,
    Recurrent,
    TwoInputs,
    Uncuttable,
    masked,
    texts,
)


def test_a_residual_network_is_cut_around_each_block() -> None:
    graph = export(resnet18().eval(), (torch.randn(2, 3, 32, 32),)).graph
    found = cut_points(graph)
    assert (len(found), len(fusion_safe_points(graph, found))) == (20, 11)


@pytest.mark.parametrize(("module", "row"), [(Branchy(), (3, 8, 8)), (Uncuttable(), (6,))])
def test_an_empty_stage_may_come_before_a_network_of_one_input(module: nn.Module, row: tuple[int, ...]) -> None:
    graph = export(module.eval(), (torch.randn(3, *row),)).graph
    assert has_entry(graph)
    empty, *rest = split(graph, (ENTRY, *cut_points(graph)))
    assert empty.nodes == ()
    assert empty.inputs == empty.output_specs() == rest[0].inputs
    assert tuple(rest) == split(graph, cut_points(graph))
    assert not has_entry(export(TwoInputs().eval(), (torch.randn(2, 3, 8, 8), torch.randn(2, 4))).graph)


def test_no_cut_where_two_activations_are_live_or_the_batch_is_not_dimension_zero() -> None:
    row = TensorType("float32", (None, 4))
    turned = TensorType("float32", (4, None))
    graph = Graph(
        inputs=(TensorSpec("x", "float32", (4,)),),
        nodes=(
            Node("a", "aten.relu.default", (Value("x"),), type=row),
            Node("b", "aten.neg.default", (Value("a"),), type=row),
            Node("c", "aten.add.Tensor", (Value("a"), Value("b")), type=row),
            Node("d", "aten.permute.default", (Value("c"), (1, 0)), type=turned),
            Node("e", "aten.permute.default", (Value("d"), (1, 0)), type=row),
            Node("f", "aten.relu.default", (Value("e"),), type=row),
        ),
        outputs=(("f", "f"),),
    )
    assert cut_points(graph) == (0, 2, 4)
    assert fusion_safe_points(graph, (0, 2, 4)) == (2,)


def test_neighbours_are_joined_into_stages_of_about_the_same_cost() -> None:
    assert join_by_seconds((10, 20, 30, 40), (1.0, 1.0, 3.0, 0.5, 2.0), 3) == (20, 30)
    assert join_by_seconds((10, 20, 30), (1.0, 1.0, 1.0, 1.0), 2) == (20,)
    assert join_by_seconds((10, 20), (1.0, 1.0, 1.0), 3) == (10, 20)
    assert join_by_seconds((10, 20), (1.0, 1.0, 1.0), 9) == (10, 20)
    assert join_by_seconds((10, 20), (1.0, 1.0, 1.0), 1) == ()
    assert join_by_seconds((10, 20, 30), (9.0, 1.0, 1.0, 1.0), 3) == (10,)
    assert join_by_seconds((), (2.0,), 1) == ()


def test_stages_end_as_soon_as_they_have_enough_bytes() -> None:
    assert join_by_bytes((10, 20, 30), (50, 20, 30, 50), 50) == (10, 30)
    assert join_by_bytes((10, 20), (20, 20, 20), 40) == ()  # what is left over is not enough for one more
    assert join_by_bytes((10, 20, 30), (50, 1, 0, 60), 50) == (30,)  # next to nothing goes with what is before it
    assert join_by_bytes((10, 20), (0, 5, 0), 0) == (10, 20)
    assert join_by_bytes((), (7,), 50) == ()


def test_a_stage_runs_on_rows_that_lie_otherwise_than_at_export() -> None:
    class Turned(nn.Module):
        """What is turned twice lies as it did at first; turned, copied as rows of a batch and turned, it does not."""

        def forward(self, x: Tensor) -> Tensor:
            turned = torch.tanh(x).transpose(1, 2).exp()
            return turned.transpose(1, 2).reshape(x.shape[0], 12).exp()

    x = torch.randn(2, 3, 4)
    exported = export(Turned(), (x,))
    for point in cut_points(exported.graph):
        before, behind = split(exported.graph, (point,))
        (rows,) = in_eager(before, exported.weights)(x)
        (found,) = in_eager(behind, exported.weights)(rows.contiguous())
        assert torch.equal(found, Turned()(x))


def names(graph: Graph, op: str) -> list[str]:
    return [node.name for node in graph.nodes if node.op.startswith(f"aten.{op}.")]


def test_a_mask_of_words_goes_between_blocks_as_one_more_number_of_each_word() -> None:
    plain = export(Reader().eval(), masked(2)).graph
    graph, first = with_carries(plain, find_carries(plain)), find_carries(plain)[0]
    block = [place for place, node in enumerate(graph.nodes) if node.op.endswith("attention.default")]
    cuts = cut_points(graph)
    assert all(any(a < cut < b for cut in cuts) for a, b in pairwise(block))
    assert len(cuts) >= len(cut_points(plain)) + 4
    found = {node.name: node for node in with_carries(plain, [first]).nodes}[first.name].type
    assert found is not None
    assert found.row == (WORDS, 17)
    assert with_carries(plain, ()) == plain


def test_what_is_as_large_as_the_activation_is_not_carried() -> None:
    assert find_carries(export(Uncuttable(), (torch.randn(2, 6),)).graph) == ()


def test_a_built_model_that_carries_a_mask_answers_as_the_module(tmp_path: Path) -> None:
    reader = Reader().eval()
    report = build_program(
        reader,
        masked(4),
        directory=tmp_path / "reader" / "1",
        name="reader",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_batch=2,
    )
    assert len(report.stages) == report.cut_points + 1
    program = load_program(report.directory)
    assert any(len(shape) == 2 and shape[1] == 17 for shape in program.activations)
    rows = masked(3)
    with torch.inference_mode():
        found = run_chain(program.stages, tuple(rows.values()))
    assert relative_error(found, run_module(reader, rows)) <= 1e-5


def test_a_decoder_that_looks_for_its_last_word_compares_first_and_is_cut_between_its_blocks() -> None:
    graph = export(Decoder().eval(), (texts(2),)).graph
    (compared,), order = names(graph, "ne"), [node.name for node in graph.nodes]
    assert order.index(compared) < order.index(names(graph, "embedding")[0])
    whole = with_carries(graph, find_carries(graph))
    places = fusion_safe_points(whole, cut_points(whole))
    attention = [i for i, node in enumerate(whole.nodes) if "attention" in node.op]
    assert len(attention) == 3
    for begin, end in pairwise(attention):
        assert sum(begin < place < end for place in places) == 2  # behind the attention, and behind the block


class Averaged(nn.Module):
    """A reader that answers by the mean of the words that count, as most that embed texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader()

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Return a vector."""
        x, left_out = self.reader.words(words), counts == 0
        for block in self.reader.blocks:
            x = block(x, src_key_padding_mask=left_out)
        weights = counts.unsqueeze(-1).expand(x.shape).float()
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)  # type: ignore[no-any-return]


def test_a_mask_that_is_a_weight_at_the_end_is_carried_as_a_number_beside_the_one_that_is_compared() -> None:
    module, rows = Averaged().eval(), masked(3)
    exported = export(module, rows)
    graph = with_carries(exported.graph, find_carries(exported.graph))
    attention = [place for place, node in enumerate(graph.nodes) if node.op.endswith("attention.default")]
    cuts = cut_points(graph)
    assert all(any(a < cut < b for cut in cuts) for a, b in pairwise(attention))
    stages = compile_stages(split(graph, cuts), exported.weights, backend="eager", threads=1)
    with torch.inference_mode():
        assert relative_error(run_chain(stages, tuple(rows.values())), run_module(module, rows)) <= 1e-5


class Compares(nn.Module):
    """Compares words in ways that look alike, and features, which follow from more than whole numbers."""

    def forward(self, words: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what was found true."""
        return x.cumsum(1) < words, words == 1, words.bool() == 1, words == 1


def test_what_follows_from_features_stays_in_its_place_and_what_differs_is_not_shared() -> None:
    rows = {"words": torch.randint(0, 4, (8, 5)), "x": torch.randn(8, 5)}
    exported = export(Compares(), rows)
    assert len(names(exported.graph, "eq")) == 2
    order = [node.name for node in exported.graph.nodes]
    assert order.index(names(exported.graph, "lt")[0]) > order.index(names(exported.graph, "cumsum")[0])
    found = in_eager(exported.graph, exported.weights)(*rows.values())
    for one, expected in zip(found, run_module(Compares(), rows), strict=True):
        assert torch.equal(one, expected)


def test_recurrent_layers_and_products_are_one_operator_each_and_nothing_is_spread_for_them() -> None:
    for module, op, count in ((Recurrent(nn.LSTM, batch_first=True), "lstm", 1), (Products(), "matmul", 4)):
        graph = export(module.eval(), (torch.randn(5, 7, 8),)).graph
        assert len(names(graph, op)) == count
        assert not names(graph, "expand")
