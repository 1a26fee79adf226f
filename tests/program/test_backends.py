"""Stages of modules of every kind compute what the module does, on each backend, whatever came before."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.cifar10.model import resnet20
from latebind.domain.errors import ConfigError, ExportError
from latebind.domain.sizes import Dim
from latebind.program.arrays import OverArrays
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
from latebind.program.cut import cut_points, find_carries, split, with_carries
from latebind.program.eager import Eager, in_eager
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph, graph_from_json, graph_to_json
from latebind.program.openvino import OpenVinoStage
from latebind.program.verify import relative_error
from tests.program.modules import (
    Branchy,
    Decoder,
    Products,
    Reader,
    Recurrent,
    Several,
    Translator,
    TwoInputs,
    TwoOutputs,
    Uncuttable,
    masked,
    texts,
)

FAST_EXACT = ("eager", "openvino")
STEPS = (5, 7, 8)


def usable(name: str) -> str:
    """Return the backend's name, or skip the test where it cannot be used."""
    reason = BACKENDS[name].unavailable()
    if reason is not None:
        pytest.skip(reason)
    return name


def residual() -> nn.Module:
    """Return a residual network whose batch norms have statistics of their own."""
    module = resnet20()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
    return module


def recurrent() -> nn.Module:
    """Return recurrent layers of several forms on one input."""
    return Several(
        Recurrent(nn.LSTM, batch_first=False, bias=False),
        Recurrent(nn.LSTM, batch_first=True),
        Recurrent(nn.GRU, batch_first=False, num_layers=2, bias=False),
        Recurrent(nn.GRU, batch_first=True, bidirectional=True),
    )


@dataclass(frozen=True)
class Case:
    """A module, five rows for it, its graph, and what its stages are if it is cut wherever that is possible."""

    module: nn.Module
    rows: tuple[Tensor, ...]
    exported: Exported
    stages: tuple[Graph, ...]


@pytest.fixture(
    scope="module",
    params=[
        (residual, (torch.randn(5, 3, 32, 32),), 22),
        (TwoInputs, (torch.randn(5, 3, 8, 8), torch.randn(5, 4)), 4),
        (Branchy, (torch.randn(5, 3, 8, 8),), 9),
        (Uncuttable, (torch.randn(5, 6),), 1),
        (TwoOutputs, (torch.randn(5, 6),), 3),
        (Translator, (torch.randint(0, 20, (5, 5)),), None),
        (Reader, tuple(masked(5).values()), None),
        (Decoder, (texts(5),), None),
        (Products, (torch.randn(*STEPS),), None),
        (recurrent, (torch.randn(*STEPS),), 1),
        (lambda: Recurrent(nn.LSTM, batch_first=True, bidirectional=True, num_layers=2), (torch.randn(*STEPS),), None),
    ],
    ids=lambda param: param[0].__name__ + str(param[2] or ""),
)
def case(request: pytest.FixtureRequest) -> Case:
    make, rows, pieces = request.param
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = make().eval()
    exported = export(module, rows)
    graph = graph_from_json(graph_to_json(exported.graph))
    assert graph == exported.graph
    whole = with_carries(graph, find_carries(graph))
    stages = split(whole, cut_points(whole))
    assert pieces in {None, len(stages)}
    return Case(module, rows, exported, stages)


@pytest.mark.parametrize("backend", FAST_EXACT)
def test_each_stage_and_the_chain_compute_what_the_module_does_in_batches_of_any_size(case: Case, backend: str) -> None:
    weights = case.exported.weights
    stages = compile_stages(case.stages, weights, backend=usable(backend), threads=1, sizes=(1, 4))
    for batch in (1, 4, 3, 5):
        rows = passed = tuple(tensor[:batch] for tensor in case.rows)
        for stage, graph in zip(stages, case.stages, strict=True):
            expected = in_eager(graph, weights)(*passed)
            assert relative_error(stage(*passed), expected) <= 1e-5
            passed = tuple(tensor.contiguous() for tensor in expected)
        assert relative_error(run_chain(stages, rows), run_module(case.module, rows)) <= 1e-5


def compile_whole(module: nn.Module, rows: Tensor, *, backend: str) -> StageFunction:
    """Return a module as one stage that takes any number of rows."""
    exported = export(module, (rows,))
    return compile_graph(exported.graph, exported.weights, backend=usable(backend), threads=1)


@pytest.mark.parametrize("backend", FAST_EXACT)
@pytest.mark.parametrize("size", [8, 32])
def test_each_call_is_right_whatever_sizes_and_layouts_of_memory_came_before(backend: str, size: int) -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1).eval()
    stage = compile_whole(conv, torch.randn(2, 16, size, size), backend=backend)
    same, other = torch.randn(3, 16, size, size), torch.randn(7, 16, size, size)
    turned = other.to(memory_format=torch.channels_last)
    for rows in (same, same.clone(), same, same[:1], other, same[1:2], other[::2], turned[::2], same):
        assert relative_error(stage(rows), run_module(conv, (rows,))) <= 1e-5


@pytest.mark.parametrize("backend", [*FAST_EXACT, pytest.param("compile", marks=pytest.mark.slow)])
def test_an_output_that_is_a_view_of_the_input_is_a_copy(backend: str) -> None:
    stage = compile_whole(nn.Flatten(), torch.randn(2, 3, 4), backend=backend)
    rows = torch.ones(3, 3, 4)
    (found,) = stage(rows[1:])
    rows.zero_()
    assert torch.equal(found, torch.ones(2, 12))


class Attention(nn.Module):
    """Each word attends to those that count."""

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, T, D) float32` and `(B, T) int64` to `(B, T, D) float32`."""
        mask = (counts != 0)[:, None, :].expand(-1, words.shape[1], -1)
        return nn.functional.scaled_dot_product_attention(words, words, words, mask)


class Encoder(nn.Module):
    """What torch has for it: words that do not count are hidden by minus infinity, which is added to scores."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.eval()

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        """Map `(B, T, D) float32` and `(B, T) int64` to `(B, D) float32`."""
        shown = counts[:, :, None].float()
        found: Tensor = (self.layers(words, src_key_padding_mask=counts == 0) * shown).sum(1) / shown.sum(1).clamp(
            min=1
        )
        return found


@pytest.mark.parametrize("module", [Attention(), Encoder()])
@pytest.mark.parametrize("backend", FAST_EXACT)
def test_where_no_word_counts_attention_answers_as_the_module_does(backend: str, module: nn.Module) -> None:
    words, counts = torch.randn(3, 4, 8), torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]])
    graph, weights = export(module, (words, counts))
    stage = compile_graph(graph, weights, backend=usable(backend), threads=1)
    expected = run_module(module, (words, counts))
    assert expected[0].isfinite().all()
    assert relative_error(stage(words, counts), expected) < 1e-5


def test_bfloat16_is_near_but_not_equal() -> None:
    module, rows = nn.Conv2d(3, 16, 3).eval(), torch.randn(4, 3, 32, 32)
    found = compile_whole(module, rows, backend="openvino-bf16")(rows)
    assert relative_error(found, run_module(module, (rows,))) < 5e-2


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="choose from eager, compile, openvino"):
        backend_named("tpu")


def test_backends_for_a_device_are_exact_and_compute_there() -> None:
    assert {"eager", "openvino"} <= set(exact_backends())
    assert "openvino-bf16" not in exact_backends()
    assert "eager" in exact_backends("cuda")
    assert "openvino" not in exact_backends("cuda")


class Wrong(Eager):
    """Takes no number for larger than 1."""

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        stage = super().compile(graph, weights, use)
        return lambda *inputs: stage(*(tensor.clamp(max=1.0) for tensor in inputs))


def test_a_backend_that_does_otherwise_than_the_module_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS.places, "wrong", f"{__name__}:Wrong")
    rows, module = torch.randn(2, 4).clamp(max=0.9), nn.Linear(4, 3).eval()
    report = build_program(
        module, (rows,), directory=tmp_path / "1", name="m", backends=("wrong", "eager"), max_batch=2
    )
    assert report.backend == "eager"
    assert "values that clients may send" in report.refused["wrong"]


class Special(nn.Module):
    """Computes what OpenVINO does not know."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.special.airy_ai(x)
        return found


@pytest.mark.parametrize("module", [Special(), Recurrent(nn.LSTM, batch_first=True, proj_size=3)])
def test_what_openvino_cannot_convert_is_reported(module: nn.Module) -> None:
    with pytest.raises(ExportError, match=r"OpenVINO cannot convert.*leave that backend out"):
        compile_whole(module.eval(), torch.randn(*STEPS), backend="openvino")


class Views(nn.Module):
    """Views rows of any length: heads apart, together again, all words below each other, a size of 1 in front."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map `(B, L, 16)` to `(B, L, 2, 8)`, `(B, L, 16)`, `(B, 2 * L, 8)`, `(B, 2, 8, L)`, `(B, 1, L, 16)`."""
        rows, length, _ = x.shape
        heads = x.sin().view(rows, length, -1, 8)
        swapped = heads.transpose(1, 2).cos()
        together = swapped.transpose(1, 2).reshape(rows, length, -1)
        turned = x.transpose(1, 2).exp().view(rows, 2, 8, length)
        return heads, together, heads.view(rows, -1, 8), turned, together.view(rows, 1, length, 16)


def test_openvino_knows_the_sizes_of_views_that_do_not_vary() -> None:
    usable("openvino")
    exported = export(Views(), {"x": torch.randn(3, 5, 16)}, dims=[Dim("L", 1, 9)], sizes={"x": ["L", 16]})
    stage = compile_graph(*exported, backend="openvino", threads=1)
    assert isinstance(stage, OverArrays)
    assert isinstance(stage.arrays, OpenVinoStage)
    assert stage.arrays.dynamic is not None
    shapes = [str(output.get_partial_shape()) for output in stage.arrays.dynamic._compiled.outputs]
    assert shapes == ["[?,?,2,8]", "[?,?,16]", "[?,?,8]", "[?,2,8,?]", "[?,1,?,16]"]
    for rows, length in [(1, 1), (3, 5), (2, 9), (1, 4)]:
        x = torch.randn(rows, length, 16)
        for found, expected in zip(stage(x), Views()(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
