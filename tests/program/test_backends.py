from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.cifar10.model import resnet20
from latebind.domain.errors import ConfigError, ExportError
from latebind.program import backends as backends_module
from latebind.program.backends import (
    BACKENDS,
    CompileOptions,
    StageFunction,
    backend_named,
    compile_graph,
    compile_stages,
    exact_backends,
    run_chain,
)
from latebind.program.build import build_program
from latebind.program.cut import cut_points, fusion_safe_points, split
from latebind.program.eager import Eager, in_eager
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph
from latebind.program.verify import relative_error
from tests.program.modules import Branchy, Translator, TwoInputs, TwoOutputs, Uncuttable

FAST_EXACT = ("eager", "openvino")
RANDOM_INPUTS = 100


def usable(name: str) -> str:
    """Return the backend's name, or skip the test where it cannot be used."""
    reason = BACKENDS[name].unavailable()
    if reason is not None:
        pytest.skip(reason)
    return name


@dataclass(frozen=True)
class Small:
    """A small module, rows for it, and its graph."""

    module: nn.Module
    rows: tuple[torch.Tensor, ...]
    exported: Exported


def compile_whole(module: nn.Module, rows: torch.Tensor, *, backend: str) -> StageFunction:
    """Return a module as one stage that takes any number of rows."""
    exported = export(module, (rows,))
    return compile_graph(exported.graph, exported.weights, backend=usable(backend), threads=1)


@pytest.fixture(scope="module")
def residual() -> tuple[nn.Module, Exported]:
    """A residual network whose batch norms have statistics of their own, and its graph."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = resnet20().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    return module, export(module, (torch.randn(2, 3, 32, 32),))


@pytest.mark.parametrize("backend", FAST_EXACT)
def test_chain_equals_eager_on_a_hundred_inputs_and_batches_of_1_to_32(
    residual: tuple[nn.Module, Exported], backend: str
) -> None:
    module, exported = residual
    points = fusion_safe_points(exported.graph, cut_points(exported.graph))
    graphs = split(exported.graph, points)
    stages = compile_stages(graphs, exported.weights, backend=usable(backend), threads=1)
    images = torch.randn(RANDOM_INPUTS, 3, 32, 32)
    (expected,) = run_module(module, (images,))
    assert len(stages) >= 11
    start = 0
    for batch in (1, 2, 3, 5, 8, 16, 32, 33):
        rows = slice(start, start + batch)
        start += batch
        assert relative_error(run_chain(stages, (images[rows],)), (expected[rows],)) <= 1e-5
    assert start == RANDOM_INPUTS


@pytest.mark.parametrize("backend", FAST_EXACT)
def test_each_stage_by_itself_equals_eager(residual: tuple[nn.Module, Exported], backend: str) -> None:
    _, exported = residual
    graphs = split(exported.graph, cut_points(exported.graph))
    stages = compile_stages(graphs, exported.weights, backend=usable(backend), threads=1)
    passed: tuple[torch.Tensor, ...] = (torch.randn(4, 3, 32, 32),)
    for stage, graph in zip(stages, graphs, strict=True):
        expected = in_eager(graph, exported.weights)(*passed)
        for batch in (1, 4):
            some = tuple(tensor[:batch] for tensor in passed)
            assert relative_error(stage(*some), tuple(tensor[:batch] for tensor in expected)) <= 1e-5
        passed = expected


def test_bfloat16_is_near_but_not_equal(residual: tuple[nn.Module, Exported]) -> None:
    module, exported = residual
    image = torch.randn(4, 3, 32, 32)
    stage = compile_graph(exported.graph, exported.weights, backend=usable("openvino-bf16"), threads=1)
    assert relative_error(stage(image), run_module(module, (image,))) < 5e-2


@pytest.fixture(
    scope="module",
    params=[
        (TwoInputs(), (torch.randn(4, 3, 8, 8), torch.randn(4, 4))),
        (Branchy(), (torch.randn(4, 3, 8, 8),)),
        (Uncuttable(), (torch.randn(4, 6),)),
        (TwoOutputs(), (torch.randn(4, 6),)),
        (Translator(), (torch.randint(0, 20, (4, 5)),)),
    ],
    ids=lambda param: type(param[0]).__name__,
)
def small(request: pytest.FixtureRequest) -> Small:
    module, rows = request.param
    return Small(module.eval(), rows, export(module, rows))


@pytest.mark.parametrize("backend", FAST_EXACT)
def test_modules_of_every_kind_run_on_every_exact_backend(small: Small, backend: str) -> None:
    graphs = split(small.exported.graph, cut_points(small.exported.graph))
    stages = compile_stages(graphs, small.exported.weights, backend=usable(backend), threads=1)
    for batch in (1, 4):
        part = tuple(tensor[:batch] for tensor in small.rows)
        assert relative_error(run_chain(stages, part), run_module(small.module, part)) <= 1e-5


@pytest.mark.parametrize("backend", FAST_EXACT)
@pytest.mark.parametrize("size", [8, 32])
def test_each_call_is_right_whatever_sizes_and_memory_came_before(backend: str, size: int) -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1).eval()
    stage = compile_whole(conv, torch.randn(2, 16, size, size), backend=backend)
    same = torch.randn(3, 16, size, size)
    for rows in (same, torch.randn(3, 16, size, size), same, same[:1], torch.randn(7, 16, size, size), same[1:2], same):
        (found,) = stage(rows)
        assert relative_error((found,), run_module(conv, (rows,))) <= 1e-5


@pytest.mark.parametrize("backend", [*FAST_EXACT, "compile"])
def test_an_output_that_is_a_view_of_the_input_is_a_copy(backend: str) -> None:
    stage = compile_whole(nn.Flatten(), torch.randn(2, 3, 4), backend=backend)
    rows = torch.ones(3, 3, 4)
    (found,) = stage(rows[1:])
    rows.zero_()
    assert torch.equal(found, torch.ones(2, 12))


@pytest.mark.parametrize("backend", FAST_EXACT)
def test_a_stage_takes_rows_in_any_memory_layout(backend: str) -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1).eval()
    stage = compile_whole(conv, torch.randn(2, 16, 32, 32), backend=backend)
    rows = torch.randn(6, 16, 32, 32)
    expected = run_module(conv, (rows[::2],))
    assert relative_error(stage(rows[::2]), expected) <= 1e-5
    assert relative_error(stage(rows.to(memory_format=torch.channels_last)[::2]), expected) <= 1e-5


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="choose from eager, compile, openvino"):
        backend_named("tpu")


def test_backends_for_a_device_are_exact_and_compute_there() -> None:
    assert {"eager", "openvino"} <= set(exact_backends())
    assert "openvino-bf16" not in exact_backends()
    assert "eager" in exact_backends("cuda")
    assert "openvino" not in exact_backends("cuda")


def test_a_backend_that_does_otherwise_than_the_module_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(Eager):
        """Takes no number for larger than 1."""

        def compile(self, graph: Graph, weights: Mapping[str, torch.Tensor], use: CompileOptions) -> StageFunction:
            stage = super().compile(graph, weights, use)
            return lambda *inputs: stage(*(tensor.clamp(max=1.0) for tensor in inputs))

    monkeypatch.setattr(backends_module, "_made", lambda place: Wrong() if place == "wrong" else Eager())
    monkeypatch.setitem(BACKENDS.places, "wrong", "wrong")
    rows, module = torch.randn(2, 4).clamp(max=0.9), nn.Linear(4, 3).eval()
    report = build_program(
        module, (rows,), directory=tmp_path / "1", name="m", backends=("wrong", "eager"), max_batch=2
    )
    assert report.backend == "eager"
    assert "values that clients may send" in report.refused["wrong"]


def test_an_operator_that_openvino_cannot_convert_is_reported() -> None:
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.special.airy_ai(x)
            return found

    with pytest.raises(ExportError, match="OpenVINO cannot convert"):
        compile_whole(Special(), torch.randn(2, 3), backend="openvino")
