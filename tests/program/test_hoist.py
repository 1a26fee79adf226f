from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from latebind.program.agreement import relative_error
from latebind.program.cut import cut_points, find_carries, fusion_safe_points, split, with_carries
from latebind.program.export import export, run_module
from latebind.program.graph import Graph
from latebind.program.load import compile_graph
from latebind.program.rebuild import run_eagerly

WORDS, WIDTH = 6, 16


class Norm(nn.Module):
    """A norm by the root mean square in parts, as libraries of language models write it."""

    def __init__(self, *, power: float = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalised."""
        mean = x.pow(self.power).mean(-1, keepdim=True)
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
    found = run_eagerly(exported.graph, exported.weights, tuple(rows.values()))
    for one, expected in zip(found, run_module(Compares(), rows), strict=True):
        assert torch.equal(one, expected)


@pytest.mark.parametrize(("power", "norms"), [(2, 6), (3, 0)])
def test_norms_in_parts_become_whole(power: float, norms: int) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(Norm(power=power) for _ in range(6))).eval()
    rows = (torch.rand(3, WORDS, WIDTH) + 0.5,)
    exported = export(module, rows)
    assert len(names(exported.graph, "rms_norm")) == norms
    assert relative_error(run_eagerly(exported.graph, exported.weights, rows), run_module(module, rows)) <= 1e-5
