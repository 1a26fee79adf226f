"""Modules whose rows depend on each other are refused, and no others: drawn ones, and some that people write."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ExportError
from latebind.program.build import BuildReport, build_program
from latebind.program.export import export, runner
from latebind.program.graph import Graph
from latebind.program.load import load_program
from latebind.program.rows import Run, check_rows
from latebind.program.whole_numbers import find_limits
from tests.program.modules import Several

WIDTH = 6
ROWS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
Step = Callable[[Tensor], Tensor]

# Each keeps the shape (B, 6). Those of the second kind take something from other rows, from their order or number.
ALONE: tuple[Step, ...] = (
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x.softmax(1),
    lambda x: x.flip(1),
    lambda x: x.sort(dim=1).values,
    lambda x: x.cumsum(1),
    lambda x: x.roll(2, 1),
    lambda x: functional.normalize(x, dim=1),
    lambda x: torch.relu(x) + x.amin(1, keepdim=True),
    lambda x: torch.where(x > x.median(1, keepdim=True).values, x, -x),
    lambda x: x * x.shape[1],
    lambda x: torch.sin(x) + x.std(1, keepdim=True),
    lambda x: x.flip(0).flip(0),
    lambda x: x.reshape(x.shape[0] * 2, 3).softmax(1).reshape(x.shape[0], 6),
)
TOGETHER: tuple[Step, ...] = (
    lambda x: x - x.mean(0),
    lambda x: x.softmax(0),
    lambda x: x.flip(0),
    lambda x: x.sort(dim=0).values,
    lambda x: x.cumsum(0),
    lambda x: x.roll(1, 0),
    lambda x: functional.normalize(x, dim=0),
    lambda x: x + x.amin(0),
    lambda x: torch.where(x > x.median(0).values, x, -x),
    lambda x: x * x.shape[0],
    lambda x: x + torch.arange(x.shape[0])[:, None],
    lambda x: x + 0 * x.sum(0),
    lambda x: functional.batch_norm(x, None, None, training=True),
    lambda x: x * 2 if x.shape[0] == 1 else x * 3,
)
WHOLE_ALONE: tuple[Step, ...] = (
    lambda x: x // 3 + x.amax(1, keepdim=True),
    lambda x: x % 7 - x.flip(1),
    lambda x: x.cumsum(1) * x.shape[1],
    lambda x: torch.where(x > 2, x, -x),
    lambda x: x.sort(dim=1).values,
)
WHOLE_TOGETHER: tuple[Step, ...] = (
    lambda x: x - x.amax(0),
    lambda x: x + x.sum(0) % 7,
    lambda x: x.cumsum(0),
    lambda x: torch.where((x > 2).any(0), x, -x),
    lambda x: x * (1 + x.shape[0] // 10),
    lambda x: x.roll(1, 0),
)


class Drawn(nn.Module):
    """Steps one after another, with layers between them where numbers are not whole."""

    def __init__(self, steps: list[Step], *, layers: bool) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in steps) if layers else None

    def forward(self, x: Tensor) -> Tensor:
        for number, step in enumerate(self.steps):
            x = step(x if self.layers is None else x + self.layers[number](x))
        return x


def drawn(*, whole: bool) -> list[tuple[nn.Module, bool]]:
    """Return modules of two steps with every step among them, and whether rows depend on each other in each."""
    own, others = (WHOLE_ALONE, WHOLE_TOGETHER) if whole else (ALONE, TOGETHER)
    found = [([step, own[5 * place % len(own)]], False) for place, step in enumerate(own)]
    for place, step in enumerate(others):
        steps = [step, own[place % len(own)]]
        found.append((steps[:: 1 if place % 2 else -1], True))
    return [(Drawn(steps, layers=not whole).eval(), depends) for steps, depends in found]


@pytest.mark.parametrize("whole", [False, True], ids=["floating point", "whole numbers"])
def test_of_drawn_modules_just_those_whose_rows_depend_on_each_other_are_refused(whole: bool) -> None:
    torch.manual_seed(0)
    modules = drawn(whole=whole)
    rows = torch.zeros(2, WIDTH, dtype=torch.int32) if whole else torch.randn(2, WIDTH)  # as `latebind build` draws
    exported = export(Several(*(module for module, _ in modules)), (rows,))
    for (module, depends), output in zip(modules, exported.graph.outputs, strict=True):
        graph = replace(exported.graph, outputs=(output,)).needed()
        found = refused(runner(module, (rows,)), graph, exported.weights, (rows,))
        assert ("rows depend on each other" in found) == depends, (output, found)
        assert depends or not found, (output, found)


def refused(answer: Run, graph: Graph, weights: dict[str, Tensor], rows: tuple[Tensor, ...]) -> str:
    """Return why a module is refused, "" if it is not."""
    try:
        check_rows(answer, graph, weights, rows, specs=find_limits(graph, weights), most=16)
    except ExportError as error:
        return str(error)
    return ""


def built(module: nn.Module, rows: Tensor, folder: Path, *, stages: float = 1.0) -> BuildReport:
    return build_program(
        module,
        {"x": rows},
        directory=folder / "m",
        name="m",
        backends=["eager"],
        min_stage_seconds=stages,
        max_overhead=None,
        max_batch=4,
    )


class Reversing(nn.Module):
    """Reverses rows and puts them back behind a layer, between two places where it can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x.flip(0)).relu().flip(0))
        return found


class Squeezing(nn.Module):
    """Takes the last dimension away by `squeeze`, so that a row alone loses the batch dimension too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x).squeeze()
        return found


class Flags(nn.Module):
    """A number that rounding changes: where the sign of a sum of many numbers is that of its last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        deep = self.layers(x)
        return torch.frac(deep * 1e5)


def test_rows_that_change_places_between_stages_are_refused_where_the_network_is_cut(tmp_path: Path) -> None:
    built(Reversing().eval(), torch.randn(2, 4), tmp_path)
    with pytest.raises(ExportError, match=r"is not what it is for the row alone.*batch_first=True"):
        built(Reversing().eval(), torch.randn(2, 4), tmp_path, stages=0.0)


@pytest.mark.parametrize("half", [False, True])
def test_rounding_that_depends_on_the_batch_is_no_reason_to_refuse(half: bool) -> None:
    torch.manual_seed(0)
    module, rows = Flags().eval(), torch.randn(4, 64)
    if half:
        module, rows = module.half(), rows.half()
    exported = export(module, (rows,))
    assert not refused(runner(module, (rows,)), exported.graph, exported.weights, (rows,))


def test_an_answer_that_loses_the_batch_where_it_is_one_row_is_refused_with_what_to_write() -> None:
    class Scores(Squeezing):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(-1)[:, None]

    for module in (Squeezing().eval(), Scores().eval()):
        exported = export(module, (ROWS,))
        said = refused(runner(module, (ROWS,)), exported.graph, exported.weights, (ROWS,))
        assert re.search(r"one row alone.*write squeeze\(-1\)", said)


def test_a_module_that_writes_to_its_input_is_built_and_leaves_the_rows_alone(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x /= 255
            return x.relu_()

    rows = torch.randint(-300, 300, (3, 4)).float()
    before = rows.clone()
    for module in (Scaled(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))):
        program = load_program(built(module.eval(), rows, tmp_path).directory)
        expected = module(rows.clone())
        assert torch.equal(rows, before)
        assert torch.allclose(program.run(rows)[0], expected)
        assert torch.equal(rows, before)
