import pytest
import torch
from torch import Tensor, nn

from examples.cifar10.model import resnet20
from examples.cifar10.resnet18 import resnet18
from latebind.domain.model import TensorSpec
from latebind.program.agreement import relative_error
from latebind.program.cut import ENTRY, cut_points, fusion_safe_points, has_entry, join_by_bytes, join_by_seconds, split
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.rebuild import run_eagerly
from tests.program.modules import Branchy, Translator, TwoInputs, TwoOutputs, Uncuttable


def chain_of(exported: Exported, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run every piece between two cut points after the other."""
    for piece in split(exported.graph, cut_points(exported.graph)):
        inputs = run_eagerly(piece, exported.weights, inputs)
    return inputs


@pytest.mark.parametrize(("make", "points", "good"), [(resnet18, 20, 11), (resnet20, 21, 11)])
def test_a_residual_network_is_cut_around_each_block(make: type[nn.Module], points: int, good: int) -> None:
    torch.manual_seed(0)
    module = make().eval()
    image = torch.randn(2, 3, 32, 32)
    exported = export(module, (image,))
    found = cut_points(exported.graph)
    assert len(found) == points
    assert len(fusion_safe_points(exported.graph, found)) == good
    assert relative_error(chain_of(exported, (image,)), run_module(module, (image,))) <= 1e-5


@pytest.mark.parametrize(
    ("module", "shapes", "pieces"),
    [
        (TwoInputs(), [(3, 8, 8), (4,)], 4),
        (Branchy(), [(3, 8, 8)], 9),
        (Uncuttable(), [(6,)], 1),
        (TwoOutputs(), [(6,)], 3),
    ],
)
def test_the_pieces_of_a_module_compute_what_it_computes(
    module: nn.Module, shapes: list[tuple[int, ...]], pieces: int
) -> None:
    module.eval()
    exported = export(module, tuple(torch.randn(2, *shape) for shape in shapes))
    assert len(split(exported.graph, cut_points(exported.graph))) == pieces
    for batch in (1, 5):
        rows = tuple(torch.randn(batch, *shape) for shape in shapes)
        assert relative_error(chain_of(exported, rows), run_module(module, rows)) <= 1e-5


@pytest.mark.parametrize("module", [Branchy(), Uncuttable()])
def test_an_empty_stage_may_come_before_the_network(module: nn.Module) -> None:
    module.eval()
    rows = torch.randn(3, *((3, 8, 8) if isinstance(module, Branchy) else (6,)))
    exported = export(module, (rows,))
    assert has_entry(exported.graph)
    empty, *rest = split(exported.graph, (ENTRY, *cut_points(exported.graph)))
    assert empty.nodes == ()
    assert empty.inputs == empty.output_specs() == rest[0].inputs
    assert tuple(rest) == split(exported.graph, cut_points(exported.graph))


def test_a_network_with_two_inputs_has_no_entry() -> None:
    assert not has_entry(export(TwoInputs().eval(), (torch.randn(2, 3, 8, 8), torch.randn(2, 4))).graph)


def test_what_follows_from_the_batch_size_is_made_again_behind_a_cut() -> None:
    module = Translator().eval()
    words = torch.randint(0, 20, (4, 5))
    exported = export(module, (words,))
    assert len(cut_points(exported.graph)) >= 2
    assert relative_error(chain_of(exported, (words,)), run_module(module, (words,))) <= 1e-5


def test_an_output_that_is_needed_to_the_end_is_the_only_activation_at_its_cut() -> None:
    exported = export(TwoOutputs().eval(), (torch.randn(2, 6),))
    last = split(exported.graph, cut_points(exported.graph))[-1]
    assert [name for name, _ in last.outputs] == ["features", "scores"]
    assert [spec.shape for spec in last.inputs] == [(8,)]


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
        (rows,) = run_eagerly(before, exported.weights, (x,))
        (found,) = run_eagerly(behind, exported.weights, (rows.contiguous(),))
        assert torch.equal(found, Turned()(x))
