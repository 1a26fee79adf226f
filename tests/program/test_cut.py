"""Where networks are cut, with what is carried beside an activation, and that their stages compute the same."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.cifar10.model import resnet20
from examples.cifar10.resnet18 import resnet18
from latebind.domain.model import TensorSpec
from latebind.program.backends import compile_graph, run_chain
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
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.load import load_program
from latebind.program.verify import relative_error
from tests.program.modules import Branchy, Reader, Translator, TwoInputs, TwoOutputs, Uncuttable

WORDS, WIDTH = 6, 16


def chain_of(exported: Exported, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run every piece between two cut points after the other."""
    for piece in split(exported.graph, cut_points(exported.graph)):
        inputs = in_eager(piece, exported.weights)(*inputs)
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
    ids=lambda param: type(param).__name__ if isinstance(param, nn.Module) else None,
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
        (rows,) = in_eager(before, exported.weights)(x)
        (found,) = in_eager(behind, exported.weights)(rows.contiguous())
        assert torch.equal(found, Turned()(x))


@pytest.fixture(scope="module")
def reader() -> Reader:
    torch.manual_seed(0)
    return Reader().eval()


@pytest.fixture(scope="module")
def exported(reader: Reader) -> Exported:
    return export(reader, masked(2))


def masked(rows: int) -> dict[str, Tensor]:
    counts = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (rows, 1))
    return {"words": torch.randint(0, 20, (rows, WORDS)), "counts": counts.long()}


def test_a_network_whose_blocks_share_a_mask_is_cut_between_them(exported: Exported) -> None:
    plain = cut_points(exported.graph)
    graph = with_carries(exported.graph, find_carries(exported.graph))
    block = [place for place, node in enumerate(graph.nodes) if node.op.endswith("attention.default")]
    cuts = cut_points(graph)
    assert all(any(a < cut < b for cut in cuts) for a, b in pairwise(block))
    assert len(cuts) >= len(plain) + 4


def test_a_mask_of_words_goes_as_one_more_number_of_each_word(exported: Exported) -> None:
    graph = exported.graph
    first = find_carries(graph)[0]
    nodes = {node.name: node for node in with_carries(graph, [first]).nodes}
    found = nodes[first.name].type
    assert found is not None
    assert found.row == (WORDS, 17)


def test_nothing_is_carried_that_is_not_wanted(exported: Exported) -> None:
    graph = exported.graph
    assert find_carries(graph)
    assert with_carries(graph, ()) == graph


def test_what_is_as_large_as_the_activation_is_not_carried() -> None:
    assert find_carries(export(Uncuttable(), (torch.randn(2, 6),)).graph) == ()


def test_a_built_model_that_carries_a_mask_answers_as_the_module(tmp_path: Path, reader: Reader) -> None:
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


class Norm(nn.Module):
    """A norm by the root mean square in parts, as libraries of language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalised."""
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-6))


class Block(nn.Module):
    """Attention of one head to those words before that count, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.three = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Return x after the block."""
        q, k, v = (part.unsqueeze(1) for part in self.three(self.norms[0](x)).chunk(3, -1))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed).squeeze(1)
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A classifier on a decoder: it takes the scores at the last word that is not padding (0)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores."""
        before = torch.tril(torch.ones(WORDS, WORDS, dtype=torch.bool))
        x = self.words(words)
        for block in self.blocks:
            x = block(x, before & (words != 0)[:, None, None, :])
        last = (torch.arange(WORDS) * (words != 0).int()).argmax(-1)
        return self.head(x)[torch.arange(words.shape[0]), last]  # type: ignore[no-any-return]


def texts(rows: int) -> Tensor:
    counts = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (rows, 1))
    return torch.randint(1, 20, (rows, WORDS)) * counts


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval()


def names(graph: Graph, op: str) -> list[str]:
    return [node.name for node in graph.nodes if node.op.startswith(f"aten.{op}.")]


def test_a_decoder_that_looks_for_its_last_word_is_cut_between_its_blocks(decoder: Decoder) -> None:
    graph = export(decoder, (texts(2),)).graph
    whole = with_carries(graph, find_carries(graph))
    places = fusion_safe_points(whole, cut_points(whole))
    attention = [i for i, node in enumerate(whole.nodes) if "attention" in node.op]
    assert len(attention) == 3
    for begin, end in pairwise(attention):
        assert sum(begin < place < end for place in places) == 2  # behind the attention, and behind the block


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_stages_of_a_decoder_compute_what_the_module_does_for_any_batch(decoder: Decoder, backend: str) -> None:
    exported = export(decoder, (texts(2),))
    whole = with_carries(exported.graph, find_carries(exported.graph))
    graphs = split(whole, fusion_safe_points(whole, cut_points(whole)))
    stages = [compile_graph(graph, exported.weights, backend=backend, threads=1, sizes=(1,)) for graph in graphs]
    for rows in (1, 2, 5):
        words = texts(rows)
        passed: tuple[Tensor, ...] = (words,)
        for stage in stages:
            passed = tuple(stage(*passed))
        assert relative_error(passed, run_module(decoder, (words,))) <= 1e-5


def test_comparisons_of_whole_numbers_are_made_once_and_first(decoder: Decoder) -> None:
    graph = export(decoder, (texts(2),)).graph
    (compared,) = names(graph, "ne")
    order = [node.name for node in graph.nodes]
    assert order.index(compared) < order.index(names(graph, "embedding")[0])


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
