"""Rows of different lengths without their padding: the same answers, each row from its own words alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.sizes import Dim
from latebind.program import choose
from latebind.program.arrays import tensors_over
from latebind.program.backends import exact_backends
from latebind.program.build import build_program
from latebind.program.cut import cut_points, find_carries, split, with_carries
from latebind.program.eager import in_eager
from latebind.program.export import export, run_module
from latebind.program.graph import Graph
from latebind.program.load import load_program, open_program
from latebind.program.metadata import read_model
from latebind.program.packing import packed, places, places_of_full
from latebind.program.padding import filled_up, together, turned
from latebind.program.verify import relative_error
from tests.program.modules import Reader

L = Dim("L", 1, 24)
SIZES: Mapping[str, Sequence[str]] = {"words": ["L"], "counts": ["L"]}
LENGTHS = [3, 9, 1, 5]
openvino = pytest.mark.skipif("openvino" not in exact_backends(), reason="OpenVINO is not installed")


class Block(nn.Module):
    """A block of an encoder with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map `(B, L, 16) float32` to the same; the mask is `(B, 1, 1, L) bool`."""
        q, k, v = (part.view(*x.shape[:2], 2, 8).transpose(1, 2) for part in self.three(x).chunk(3, -1))
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm(x + self.out(found.transpose(1, 2).reshape(x.shape)))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Two blocks; it answers by the first word, after all that count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, L) int64` twice to `(B, 16) float32`."""
        x, mask = self.words(words), (counts != 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        return x[:, 0]  # type: ignore[no-any-return]


class Gated(nn.Module):
    """A block as newer encoders have it: a norm by the root mean square in parts, and a gate beside each number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 16)
        self.scale = nn.Parameter(torch.rand(16))
        self.wide, self.narrow = nn.Linear(16, 64, bias=False), nn.Linear(32, 16)

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, L) int64` twice to the mean `(B, 16) float32` of the words that count."""
        x = self.words(words)
        normed = self.scale * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        taken, gate = self.wide(normed).chunk(2, -1)
        x = x + self.narrow(nn.functional.gelu(taken) * gate)
        mask = counts[:, :, None].expand(x.shape).float()
        return (x * mask).sum(1) / mask.sum(1).clamp_min(1e-9)  # type: ignore[no-any-return]


def rows_of(lengths: Sequence[int]) -> list[tuple[Tensor, ...]]:
    return [(torch.randint(0, 20, (1, size)), torch.ones(1, size, dtype=torch.int64)) for size in lengths]


def examples() -> dict[str, Tensor]:
    words, counts = (torch.cat([part] * 3) for part in rows_of([7])[0])
    return {"words": words, "counts": counts}


def exported(module: nn.Module) -> tuple[Graph, Mapping[str, Tensor]]:
    found = export(module.eval(), examples(), dims=[L], sizes=SIZES)
    return found.graph, found.weights


def filled(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    longest = max(words.shape[1] for words, _ in rows)
    return tuple(filled_up(parts, (longest,)) for parts in zip(*rows, strict=True))


def below(graph: Graph, weights: Mapping[str, Tensor]) -> Graph:
    found = packed(graph, weights, graph.inputs)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("module", "layers"),
    [(Attending(), 8), (Gated(), 2), (Reader(), 6)],  # the last one's attention has rows within words
)
def test_linear_layers_take_all_words_and_no_padding(module: nn.Module, layers: int) -> None:
    graph, weights = exported(module)
    made = below(graph, weights)
    rows = rows_of(LENGTHS)
    wide = [node.name for node in made.nodes if node.op == "aten.linear.default" and node.name.endswith(".below")]
    inside = Graph(made.inputs, made.nodes, tuple((name, name) for name in wide), made.dims)
    assert len(wide) == layers
    assert {len(part) for part in in_eager(inside, weights)(*filled(rows), *tensors_over(places(LENGTHS)))} == {
        sum(LENGTHS)
    }


@pytest.mark.parametrize("module", [Attending(), Gated(), Reader()])
def test_a_packed_graph_answers_each_row_as_alone(module: nn.Module) -> None:
    graph, weights = exported(module)
    run, alone = in_eager(below(graph, weights), weights), in_eager(graph, weights)
    rows = rows_of(LENGTHS)
    found = run(*filled(rows), *tensors_over(places(LENGTHS)))
    for place, row in enumerate(rows):
        assert relative_error([part[[place]] for part in found], alone(*row)) < 1e-5
    whole = tuple(torch.cat(parts) for parts in zip(*rows_of([4, 4, 4]), strict=True))
    assert relative_error(run(*whole, *tensors_over(places_of_full(3, 4))), alone(*whole)) < 1e-5


def test_what_is_filled_up_behind_a_row_is_never_of_another_row() -> None:
    graph, weights = exported(Attending())
    cut = with_carries(graph, turned(graph, weights, find_carries(graph)))
    stage = split(cut, cut_points(cut)[:1])[1]
    run, alone = in_eager(below(stage, weights), weights), in_eager(stage, weights)
    (spec,) = stage.inputs
    rows = [torch.randn(1, size, spec.shape[-1]) for size in LENGTHS]
    for row in rows:
        row[:, :, 16:] = 1  # every word counts
    rows[1][:, :, :16] = float("nan")
    found = run(filled_up(rows, (max(LENGTHS), spec.shape[-1])), *tensors_over(places(LENGTHS)))
    for place in (0, 2, 3):
        assert relative_error([part[[place]] for part in found], alone(rows[place])) < 1e-5


def test_a_graph_without_a_layer_for_each_word_is_left_as_it_is() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 16)

        def forward(self, words: Tensor, counts: Tensor) -> Tensor:
            """Return the sum of the vectors of the words that count."""
            return (self.words(words) * counts[:, :, None]).sum(1)  # type: ignore[no-any-return]

    graph, weights = exported(Summed())
    assert packed(graph, weights, graph.inputs) is None


@openvino
@pytest.mark.parametrize("saved", [-1e9, 1.0])
def test_a_model_is_packed_where_that_saves_time_and_is_answered_as_its_module(
    saved: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "LEAST_SAVED", saved)
    monkeypatch.setattr(choose, "MOST_LOST", 1e9)
    module = Attending().eval()
    directory = build_program(
        module,
        examples(),
        directory=tmp_path,
        name="model",
        backends=["openvino"],
        dims=[L],
        sizes=SIZES,
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=4,
    ).directory
    model = read_model(directory)
    assert (model.pads, model.packs) == (True, saved < 0)
    opened, pieces = open_program(directory)
    for piece in pieces:
        piece.load()
    loaded, rows = load_program(directory), rows_of(LENGTHS)
    expected = [run_module(module, dict(zip(SIZES, row, strict=True))) for row in rows]
    for program in (loaded, loaded.twin(), opened):
        for joins in ([0, 0, 0, 0], [0, 2, 1, 2]):
            found = together(program.stages, program.graphs, program.spec.inputs, rows, joins)
            assert max(map(relative_error, found, expected)) < 1e-5
        same = tuple(torch.cat(parts) for parts in zip(*rows_of([6, 6]), strict=True))
        assert relative_error(program.run(*same), run_module(module, dict(zip(SIZES, same, strict=True)))) < 1e-5
