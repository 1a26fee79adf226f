from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from latebind.program.agreement import relative_error
from latebind.program.build import build_program
from latebind.program.cut import cut_points, find_carries, split, with_carries
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import graph_from_json, graph_to_json
from latebind.program.load import load_program
from latebind.program.measure import run_chain
from latebind.program.rebuild import run_eagerly
from tests.program.modules import Reader, Uncuttable

WORDS = 6


@pytest.fixture(scope="module")
def reader() -> Reader:
    torch.manual_seed(0)
    return Reader().eval()


@pytest.fixture(scope="module")
def exported(reader: Reader) -> Exported:
    return export(reader, texts(2))


def texts(rows: int) -> dict[str, Tensor]:
    counts = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (rows, 1))
    return {"words": torch.randint(0, 20, (rows, WORDS)), "counts": counts.long()}


def test_a_network_whose_blocks_share_a_mask_is_cut_between_them(exported: Exported) -> None:
    plain = cut_points(exported.graph)
    graph = with_carries(exported.graph, find_carries(exported.graph))
    block = [place for place, node in enumerate(graph.nodes) if node.op.endswith("attention.default")]
    cuts = cut_points(graph)
    assert all(any(a < cut < b for cut in cuts) for a, b in pairwise(block))
    assert len(cuts) >= len(plain) + 4


def test_stages_with_a_carried_mask_compute_what_the_module_does_for_any_batch(
    reader: Reader, exported: Exported
) -> None:
    graph = graph_from_json(graph_to_json(with_carries(exported.graph, find_carries(exported.graph))))
    stages = split(graph, cut_points(graph))
    for rows in (1, 2, 5):
        taken = texts(rows)
        passed = tuple(taken.values())
        for stage in stages:
            passed = run_eagerly(stage, exported.weights, passed)
        assert relative_error(passed, run_module(reader, taken)) <= 1e-5


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


class Gate(nn.Module):
    """Rows with an odd number go through, others do not; which went is given out at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, image: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        odd = number % 2 == 1
        wide = odd[:, None, None, None].expand(-1, 16, 8, 8)
        x = torch.where(wide, self.first(image), 0.0)
        return torch.where(wide, self.second(x), 1.0), odd


def test_what_is_carried_may_have_another_shape_and_be_an_output() -> None:
    module = Gate().eval()
    rows = {"image": torch.randn(4, 3, 8, 8), "number": torch.tensor([1, 2, 3, 4])}
    exported = export(module, rows)
    graph = with_carries(exported.graph, find_carries(exported.graph))
    assert [graph.nodes[point].name for point in cut_points(graph) if "carried" in graph.nodes[point].name]
    passed = tuple(rows.values())
    for stage in split(graph, cut_points(graph)):
        passed = run_eagerly(stage, exported.weights, passed)
    assert relative_error(passed, run_module(module, rows)) <= 1e-5
    assert passed[1].dtype == torch.bool


def test_a_built_model_that_carries_a_mask_answers_as_the_module(tmp_path: Path, reader: Reader) -> None:
    report = build_program(
        reader,
        texts(4),
        directory=tmp_path / "reader" / "1",
        name="reader",
        backends=["eager"],
        min_stage_seconds=0.0,
        max_batch=2,
    )
    assert len(report.stages) == report.cut_points + 1
    program = load_program(report.directory)
    assert any(len(shape) == 2 and shape[1] == 17 for shape in program.activations)
    rows = texts(3)
    with torch.inference_mode():
        found = run_chain(program.stages, tuple(rows.values()))
    assert relative_error(found, run_module(reader, rows)) <= 1e-5
