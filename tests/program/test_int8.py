"""Linear layers in eight bits: near to full precision, alike in every batch, and only where that was asked for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.domain.sizes import Dim
from latebind.program import openvino
from latebind.program.backends import BACKENDS, compile_graph, exact_backends, run_rows
from latebind.program.build import build_program
from latebind.program.export import Exported, export, run_module
from latebind.program.load import load_program
from latebind.program.openvino import GROUP
from latebind.program.padding import filled_up
from latebind.program.verify import relative_error

pytestmark = pytest.mark.skipif("openvino" not in exact_backends(), reason="OpenVINO is not installed")

bytes_only = pytest.mark.skipif(not openvino.multiplies_bytes(), reason="this processor does not multiply bytes")

INT8, WIDTH, LONGEST = "openvino-int8", 128, 24
L = Dim("L", 1, LONGEST)
SIZES: dict[str, list[str | int]] = {"ids": ["L"], "mask": ["L"]}


class Encoder(nn.Module):
    """Two blocks as encoders have them, and classes of the mean of the words that count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, WIDTH)
        self.three = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.classes = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map two `(B, L) int64` to `(B, 5) float32`."""
        x, kept = self.words(ids), mask != 0
        for number in range(2):
            parts = self.three[number](x).chunk(3, -1)
            q, k, v = (part.view(*x.shape[:2], 2, WIDTH // 2).transpose(1, 2) for part in parts)
            seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept[:, None, None, :])
            x = self.norms[2 * number](x + seen.transpose(1, 2).reshape(x.shape))
            x = self.norms[2 * number + 1](x + self.down[number](nn.functional.gelu(self.up[number](x))))
        shares = kept[:, :, None].float()
        return self.classes((x * shares).sum(1) / shares.sum(1).clamp(min=1.0))  # type: ignore[no-any-return]


class Apart(nn.Module):
    """Its input as it is, by an operation that is no layer norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any tensor to itself."""
        return x.clamp(max=1e30)


def texts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(length))
    return ids, torch.ones_like(ids)


def named(rows: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return dict(zip(("ids", "mask"), rows, strict=True))


def exported(module: nn.Module) -> Exported:
    return export(module, named(texts(2, 5)), dims=[L], sizes=SIZES)


@pytest.mark.parametrize("length", [1, 7, LONGEST])
def test_an_encoder_answers_nearly_as_in_full_precision_at_every_length(length: int) -> None:
    module = Encoder().eval()
    graph, weights = exported(module)
    stage = compile_graph(graph, weights, backend=INT8, threads=1)
    rows = texts(4, length)
    assert 1e-5 < relative_error(stage(*rows), run_module(module, rows)) < 0.05


def test_a_row_is_answered_alike_alone_and_beside_longer_ones_packed_or_padded() -> None:
    graph, weights = exported(Encoder().eval())
    plain, packing = (compile_graph(graph, weights, backend=INT8, threads=1, packs=packs) for packs in (False, True))
    lengths = (3, 9, 1)
    rows = [texts(1, length) for length in lengths]
    alone = torch.cat([plain(*row)[0].clone() for row in rows])
    batch = tuple(filled_up(parts, (max(lengths),), 0) for parts in zip(*rows, strict=True))
    for stage in (plain, packing):
        (found,) = run_rows(stage, lengths, batch)
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_numbers_of_any_size_are_rounded_alike() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)).eval()
    for part in module:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    stage = compile_graph(*export(module, (torch.randn(2, WIDTH),)), backend=INT8, threads=1)
    row = torch.randn(1, WIDTH)
    (expected,) = stage(row)
    expected = expected.clone()
    for size in (1e-6, 1e6):
        torch.testing.assert_close(stage(row * size)[0] / size, expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(stage(torch.zeros(1, WIDTH))[0], torch.zeros(1, 8))


@pytest.mark.parametrize("width", [32, 64, 200, 312])
def test_layers_that_read_any_number_of_numbers_are_near(width: int) -> None:
    torch.manual_seed(0)
    module, rows = nn.Linear(width, 40).eval(), (torch.randn(3, width),)
    stage = compile_graph(*export(module, rows), backend=INT8, threads=1)
    assert relative_error(stage(*rows), run_module(module, rows)) < 0.03


def test_where_no_bytes_are_multiplied_the_weights_alone_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, rows = nn.Linear(WIDTH, 40).eval(), torch.randn(3, WIDTH)
    monkeypatch.setattr(openvino, "multiplies_bytes", lambda: False)
    stage = compile_graph(*export(module, (rows,)), backend=INT8, threads=1)
    with torch.inference_mode():
        weights = module.weight.view(40, WIDTH // GROUP, GROUP)
        scales = weights.abs().amax(dim=2, keepdim=True) / 127
        expected = nn.functional.linear(rows, ((weights / scales).round() * scales).view(40, WIDTH), module.bias)
    assert relative_error(stage(rows), (expected,)) < 1e-5


def test_large_numbers_behind_a_norm_do_not_make_those_beside_them_coarse() -> None:
    torch.manual_seed(0)
    norm, layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40)
    with torch.no_grad():
        norm.weight[::GROUP] = 40.0
        layer.weight[:, ::GROUP] /= 40.0
        layer.bias.zero_()
    rows = (torch.randn(64, WIDTH),)
    errors = []
    for even in (True, False):
        body = nn.Sequential(norm, *([] if even else [Apart()]), layer).eval()
        stage = compile_graph(*export(body, rows), backend=INT8, threads=1)
        found, expected = stage(*rows)[0], run_module(body, rows)[0]
        errors.append(float((found - expected).norm() / expected.norm()))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("size", [0.0, 1.0])
def test_a_norm_that_gives_nothing_and_inputs_that_count_for_nothing_do_no_harm(size: float) -> None:
    torch.manual_seed(0)
    norm, layer, rows = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), (torch.randn(3, WIDTH),)
    with torch.no_grad():
        norm.weight.mul_(size)
        layer.weight[:, : WIDTH - 8] = 0.0
    module = nn.Sequential(norm, layer).eval()
    stage = compile_graph(*export(module, rows), backend=INT8, threads=1)
    assert relative_error(stage(*rows), run_module(module, rows)) < 0.03


def test_outputs_whose_weights_are_all_zero_stay_zero() -> None:
    module = nn.Linear(WIDTH, 8).eval()
    nn.init.zeros_(module.weight)
    rows = (torch.randn(3, WIDTH),)
    stage = compile_graph(*export(module, rows), backend=INT8, threads=1)
    assert relative_error(stage(*rows), run_module(module, rows)) < 1e-5


@bytes_only
@pytest.mark.slow
def test_a_build_takes_it_within_the_tolerance_and_a_server_loads_it(tmp_path: Path) -> None:
    module, rows = Encoder().eval(), texts(4, 9)
    report = build_program(
        module,
        named(rows),
        directory=tmp_path / "1",
        name="texts",
        backends=[INT8],
        tolerance=0.1,
        max_batch=4,
        dims=[L],
        sizes=SIZES,
    )
    assert report.backend == INT8
    assert 1e-5 < report.error < 0.1
    program = load_program(report.directory)
    assert program.backend == INT8
    assert 1e-5 < relative_error(program.run(*rows), run_module(module, rows)) < 0.1


@bytes_only
def test_a_build_refuses_it_where_it_differs_by_more_than_the_tolerance(tmp_path: Path) -> None:
    rows = named(texts(4, 9))
    with pytest.raises(ExportError, match=r"openvino-int8: relative error .* is over 1\.0e-04"):
        build_program(
            Encoder().eval(), rows, directory=tmp_path / "1", name="texts", backends=[INT8], tolerance=1e-4, max_batch=2
        )


def test_a_build_refuses_it_on_a_processor_that_does_not_multiply_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "multiplies_bytes", lambda: False)
    rows = (torch.randn(2, WIDTH),)
    with pytest.raises(ExportError, match="does not multiply bytes"):
        build_program(
            nn.Linear(WIDTH, 8).eval(), rows, directory=tmp_path / "1", name="m", backends=[INT8], tolerance=0.1
        )


@bytes_only
def test_a_network_without_linear_layers_is_refused_with_why(tmp_path: Path) -> None:
    module, rows = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten()).eval(), (torch.randn(2, 3, 8, 8),)
    with pytest.raises(ExportError, match="no linear layers that read 64"):
        build_program(
            module, rows, directory=tmp_path / "1", name="pictures", backends=[INT8], tolerance=0.1, max_batch=2
        )


def test_it_is_no_exact_backend() -> None:
    assert INT8 not in exact_backends()
    assert not BACKENDS[INT8].exact
