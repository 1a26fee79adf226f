"""Graphs that only pool give in numpy what torch gives; all others are left to the backends."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.learned.networks import Pooled
from latebind.program.export import export
from latebind.program.graph import Graph
from latebind.program.numpy_stage import compile_with_numpy


def graph_of(module: nn.Module, *shape: int) -> Graph:
    return export(module.eval(), (torch.zeros(1, *shape),)).graph


class Cells(nn.Module):
    """Means of cells of some shape, or maxima, with whatever options."""

    def __init__(self, kind: str, cell: tuple[int, int], **options: object) -> None:
        super().__init__()
        self.pool = getattr(functional, kind)
        self.cell = cell
        self.options = options

    def forward(self, image: Tensor) -> Tensor:
        """Return them side by side."""
        found: Tensor = self.pool(image, self.cell, **self.options)
        return found.flatten(1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (16, 8, 8), (2, 16, 48)])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_pooled_features_are_those_of_torch(shape: tuple[int, ...], batch: int) -> None:
    function = compile_with_numpy(graph_of(Pooled(), *shape))
    assert function is not None
    rows = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
    (found,) = function(rows)
    torch.testing.assert_close(found, Pooled()(rows))


def test_cells_that_are_not_square_are_told_apart() -> None:
    module = Cells("avg_pool2d", (2, 4))
    function = compile_with_numpy(graph_of(module, 1, 4, 8))
    assert function is not None
    rows = torch.arange(32.0).view(1, 1, 4, 8)
    (found,) = function(rows)
    torch.testing.assert_close(found, torch.tensor([[5.5, 9.5, 21.5, 25.5]]))


def test_rows_that_do_not_lie_side_by_side_are_read_as_they_are() -> None:
    function = compile_with_numpy(graph_of(Pooled(), 4, 8, 8))
    assert function is not None
    rows = torch.randn(2, 8, 8, 4).permute(0, 3, 1, 2)
    (found,) = function(rows)
    torch.testing.assert_close(found, Pooled()(rows))


@pytest.mark.parametrize(
    "module",
    [
        Cells("avg_pool2d", (4, 4), stride=2),
        Cells("max_pool2d", (4, 4), stride=2),
        Cells("avg_pool2d", (4, 4), padding=1),
        Cells("max_pool2d", (4, 4), padding=1),
        Cells("max_pool2d", (2, 2), dilation=2),
        Cells("avg_pool2d", (4, 4), divisor_override=3),
        Cells("avg_pool2d", (3, 3)),
        Cells("avg_pool2d", (3, 3), ceil_mode=True),
        nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(128, 4)),
    ],
    ids=str,
)
def test_whatever_else_is_computed_is_left_to_a_backend(module: nn.Module) -> None:
    assert compile_with_numpy(graph_of(module, 2, 8, 8)) is None
