"""LSTM and GRU layers, and products of matrices: whole in the graph, the same numbers on every backend."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.program.backends import compile_graph
from latebind.program.export import Exported, export, run_module

Network = Callable[..., nn.RNNBase]

ROWS = torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(0))


class Recurrent(nn.Module):
    """A recurrent network that gives all that torch's does, rows of the batch first."""

    def __init__(self, kind: Network, **settings: int | bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = kind(8, 6, **settings)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all steps and the last states."""
        first = self.network.batch_first
        outputs, states = self.network(rows if first else rows.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        return (outputs if first else outputs.transpose(0, 1), *(state.transpose(0, 1) for state in states))


@dataclass(frozen=True)
class Made:
    """A network and its graph."""

    module: Recurrent
    exported: Exported


@pytest.fixture(
    scope="module",
    params=[
        (nn.LSTM, {"batch_first": True}),
        (nn.GRU, {"batch_first": False, "num_layers": 2, "bias": False}),
        (nn.LSTM, {"batch_first": False, "bias": False}),
        (nn.GRU, {"batch_first": True, "bidirectional": True}),
        (nn.LSTM, {"batch_first": True, "bidirectional": True, "num_layers": 2}),
    ],
    ids=["LSTM", "GRU of two layers", "LSTM without bias", "GRU both ways", "LSTM of two layers both ways"],
)
def made(request: pytest.FixtureRequest) -> Made:
    kind, settings = request.param
    module = Recurrent(kind, **settings)
    return Made(module, export(module, (ROWS,)))


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_recurrent_layers_equal_torch_in_batches_of_any_size(made: Made, backend: str) -> None:
    call = compile_graph(made.exported.graph, made.exported.weights, backend=backend, threads=1, sizes=(1, 4))
    for batch in (1, 4, 3, 5):
        rows = ROWS[:batch]
        for found, expected in zip(call(rows), run_module(made.module, (rows,)), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "name"), [(nn.LSTM, "aten.lstm.input"), (nn.GRU, "aten.gru.input")])
def test_a_recurrent_layer_is_one_operator_whatever_its_steps(kind: Network, name: str) -> None:
    operators = [node.op for node in export(Recurrent(kind, batch_first=True), (ROWS,)).graph.nodes]
    assert operators.count(name) == 1
    assert len(operators) < 10


def test_two_layers_on_one_input_keep_their_own_results() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Recurrent(nn.LSTM, batch_first=True), Recurrent(nn.LSTM, batch_first=True)

        def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(rows)[1], self.other(rows + 1.0)[1]

    module = Both()
    exported = export(module, (ROWS,))
    call = compile_graph(exported.graph, exported.weights, backend="openvino", threads=1)
    expected = one, other = run_module(module, (ROWS,))
    assert not torch.allclose(one, other)
    for found, wanted in zip(call(ROWS), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_openvino_says_that_it_does_not_convert_projections() -> None:
    exported = export(Recurrent(nn.LSTM, batch_first=True, proj_size=3), (ROWS,))
    with pytest.raises(ExportError, match="leave that backend out"):
        compile_graph(exported.graph, exported.weights, backend="openvino", threads=1)


class Products(nn.Module):
    """Attention of two heads, a matrix for all rows before it and a vector for each row behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turn = nn.Parameter(torch.randn(8, 8))

    def forward(self, rows: Tensor) -> Tensor:
        """Return `(B, 7)` for rows `(B, 7, 8)`."""
        heads = (rows @ self.turn).view(-1, 7, 2, 4).transpose(1, 2)
        weights = torch.softmax(heads @ heads.transpose(2, 3), dim=3)
        found = (weights @ heads).transpose(1, 2).flatten(2)
        told: Tensor = found @ rows[:, 0, :, None]
        return told[:, :, 0]


def test_products_are_one_operator_each_and_nothing_is_spread_for_them() -> None:
    operators = [node.op for node in export(Products(), (ROWS,)).graph.nodes]
    assert operators.count("aten.matmul.default") == 4
    assert "aten.expand.default" not in operators


@pytest.mark.parametrize("backend", ["eager", "openvino"])
def test_products_equal_torch_in_batches_of_any_size(backend: str) -> None:
    module = Products()
    exported = export(module, (ROWS,))
    call = compile_graph(exported.graph, exported.weights, backend=backend, threads=1, sizes=(1, 4))
    for batch in (1, 4, 3, 5):
        (found,), (expected,) = call(ROWS[:batch]), run_module(module, (ROWS[:batch],))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
