"""Products of matrices: whole in the graph, the same numbers on every backend."""

import pytest
import torch
from torch import Tensor, nn

from latebind.program.export import export, run_module
from latebind.program.load import compile_graph

ROWS = torch.randn(5, 7, 8, generator=torch.Generator().manual_seed(0))


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
