"""Eight-bit convolutions: close to full precision, the same in every backend, and only where they belong."""

import pytest
import torch
from torch import nn

from latebind.learned.compiled import PER_CHANNEL, PER_TENSOR, quantise
from latebind.learned.networks import RESIDUAL, make_predictor
from latebind.program.backends import compile_graph
from latebind.program.eager import in_eager
from latebind.program.export import Exported, export
from latebind.program.graph import Graph, graph_from_json, graph_to_json

ROWS = torch.randn(64, 16, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def exported() -> Exported:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make_predictor((16, 8, 8), 10, RESIDUAL).eval()
    return export(network, (ROWS[:1],))


def calls(graph: Graph, operator: str) -> int:
    return sum(node.op == operator for node in graph.nodes)


def test_each_convolution_gets_eight_bits_and_answers_hardly_change(exported: Exported) -> None:
    graph, weights = quantise(exported.graph, exported.weights, ROWS)
    convolutions = calls(exported.graph, "aten.convolution.default")
    assert calls(graph, PER_CHANNEL) == convolutions
    assert 0 < calls(graph, PER_TENSOR) <= convolutions
    (exact,) = in_eager(exported.graph, exported.weights)(ROWS)
    (coarse,) = in_eager(graph, weights)(ROWS)
    assert not torch.equal(exact, coarse)
    assert (exact - coarse).abs().max() < 0.05 * exact.std() + 0.02 * exact.abs().max()


def test_what_was_never_negative_gets_all_steps_above_zero(exported: Exported) -> None:
    graph, _ = quantise(exported.graph, exported.weights, ROWS)
    ranges = {node.args[0]: node.args[3:] for node in graph.nodes if node.op == PER_TENSOR}
    signed = [bounds for bounds in ranges.values() if bounds == (-128, 127)]
    unsigned = [bounds for bounds in ranges.values() if bounds == (0, 255)]
    assert len(signed) == 1  # the input alone; all others come out of a ReLU
    assert len(unsigned) == len(ranges) - 1


def test_colours_and_networks_without_convolutions_stay_as_they_are() -> None:
    colours = export(nn.Conv2d(3, 8, 3).eval(), (torch.randn(1, 3, 8, 8),))
    linear = export(nn.Linear(8, 4).eval(), (torch.randn(1, 8),))
    for exported, rows in ((colours, torch.randn(4, 3, 8, 8)), (linear, torch.randn(4, 8))):
        graph, weights = quantise(exported.graph, exported.weights, rows)
        assert graph == exported.graph
        assert set(weights) == set(exported.weights)


@pytest.mark.parametrize("backend", ["openvino", "openvino-bf16"])
def test_openvino_computes_the_same_numbers(exported: Exported, backend: str) -> None:
    pytest.importorskip("openvino")
    graph, weights = quantise(exported.graph, exported.weights, ROWS)
    (eager,) = in_eager(graph, weights)(ROWS[:4])
    (fast,) = compile_graph(graph, weights, backend=backend, threads=1)(ROWS[:4].contiguous())
    assert (fast - eager).abs().max() < 0.1 * eager.std() + 0.02 * eager.abs().max()


def test_a_convolution_that_is_called_twice_is_quantised_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.convolution(torch.relu(self.convolution(given)))
            return found

    exported = export(Twice().eval(), (ROWS[:1],))
    graph, weights = quantise(exported.graph, exported.weights, ROWS)
    assert (calls(graph, PER_CHANNEL), calls(graph, PER_TENSOR)) == (1, 2)
    (found,) = in_eager(graph_from_json(graph_to_json(graph)), weights)(ROWS)
    (exact,) = in_eager(exported.graph, exported.weights)(ROWS)
    assert (found - exact).abs().max() < 0.1 * exact.abs().max()
