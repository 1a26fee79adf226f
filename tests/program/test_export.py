"""What an export keeps, what it makes simpler, and what it refuses with which advice."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.cut import cut_points
from latebind.program.eager import in_eager
from latebind.program.export import Exported, export, in_order, run_module
from latebind.program.graph import graph_from_json, graph_to_json
from latebind.program.verify import relative_error
from tests.program.modules import Branchy, Cached, Counts, DependsOnValues, TwoInputs, TwoOutputs

Function = Callable[[Tensor], object]


class Uses(nn.Module):
    """Applies a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def check_equal(module: nn.Module, exported: Exported, *rows: Tensor) -> None:
    found = in_eager(exported.graph, exported.weights)(*rows)
    assert relative_error(found, run_module(module, rows)) <= 1e-5


def test_names_dtypes_and_shapes_of_inputs_and_outputs_are_kept() -> None:
    exported = export(TwoInputs(), {"image": torch.randn(1, 3, 8, 8), "vector": torch.randn(1, 4)})
    assert exported.graph.inputs == (TensorSpec("image", "float32", (3, 8, 8)), TensorSpec("vector", "float32", (4,)))
    assert exported.graph.output_specs() == (TensorSpec("output", "float32", (5,)),)
    named = export(TwoOutputs(), (torch.randn(2, 6),)).graph.output_specs()
    assert [(spec.name, spec.shape) for spec in named] == [("features", (8,)), ("scores", (3,))]


def test_inputs_go_by_name_where_the_module_knows_all_and_in_order_where_it_knows_none() -> None:
    image, vector = torch.randn(3, 3, 8, 8), torch.randn(3, 4)
    exported = export(TwoInputs(), {"picture": image, "place": vector})
    assert [spec.name for spec in exported.graph.inputs] == ["picture", "place"]
    assert run_module(TwoInputs(), {"picture": image, "place": vector})[0].shape == (3, 5)
    with pytest.raises(ExportError, match=r"forward\(image, vector\) has no place"):
        export(TwoInputs(), {"image": image, "place": vector})
    with pytest.raises(ExportError, match="different names"):
        export(TwoInputs(), (image, vector), input_names=("x", "x"))


def test_batch_norms_behind_convolutions_are_folded_into_them() -> None:
    module = Branchy().eval()
    exported = export(module, (torch.randn(2, 3, 8, 8),))
    assert not [node.op for node in exported.graph.nodes if "batch_norm" in node.op]
    check_equal(module, exported, torch.randn(3, 3, 8, 8))


def test_a_tied_weight_is_stored_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    assert len(export(nn.Sequential(first, nn.Tanh(), second), (torch.randn(2, 4),)).weights) == 1


def test_a_module_in_training_mode_is_exported_for_inference_and_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    exported = export(module, (torch.randn(2, 3),))
    assert module.training
    assert [node.op for node in exported.graph.nodes] == ["aten.linear.default"]


class Scaled(nn.Module):
    """Computes with what depends on weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.softmax(self.weight, 0)


class Counted(nn.Module):
    """Counts its calls, which nobody reads."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


def spread(x: Tensor) -> Tensor:
    """Dropout leaves a copy behind, which is taken out before a view of rows that are spread."""
    wide = functional.dropout(x[:, None].expand(-1, 3, -1), 0.5, False)
    return wide.unsqueeze(3).reshape(x.shape[0] * 3, 4).exp().reshape(x.shape[0], 12)


@pytest.mark.parametrize(
    ("module", "row", "operators"),
    [
        (Scaled(), (4,), ["mul.Tensor"]),
        (Counted(), (4,), ["linear.default"]),
        (Uses(lambda x: torch.cat([torch.tensor([]), x * 2], dim=-2)), (5, 4), ["mul.Tensor"]),
        (Uses(spread), (4,), None),
        (Uses(lambda x: nn.AdaptiveAvgPool2d(1)((x * 2).permute(0, 3, 1, 2)).flatten(1)), (5, 5, 3), None),
        (Uses(lambda x: functional.normalize(x).unfold(1, 3, 1).sum(-1)), (8,), None),
    ],
    ids=["weights alone", "unread count", "empty cache", "copy", "pooling of channels last", "lengths and windows"],
)
def test_what_is_not_needed_leaves_the_graph_and_answers_stay(
    module: nn.Module, row: tuple[int, ...], operators: list[str] | None
) -> None:
    exported = export(module.eval(), (torch.randn(2, *row),))
    found = [node.op.removeprefix("aten.") for node in exported.graph.nodes]
    assert "clone.default" not in found
    if operators is not None:
        assert found == operators
    check_equal(module, exported, torch.randn(3, *row))


def test_complex_numbers_may_be_inside_but_not_at_the_border_or_a_cut() -> None:
    module, rows = Uses(lambda x: torch.fft.rfft(x.relu()).abs()), torch.randn(3, 8)
    exported = export(module, (rows,))
    graph = graph_from_json(graph_to_json(exported.graph))
    check_equal(module, Exported(graph, exported.weights), rows)
    made = [graph.nodes[point].type for point in cut_points(graph)]
    assert {kind.dtype for kind in made if kind is not None} == {"float32"}
    with pytest.raises(ExportError, match=r"complex64.*view_as_real"):
        export(module, (rows.to(torch.complex64),))
    for dtype, instead in ((torch.uint16, "int32"), (torch.uint32, "int64"), (torch.uint64, "int64")):
        with pytest.raises(ExportError, match=rf"an input of the module has dtype uint.*take {instead}"):
            export(Uses(lambda x: x.to(torch.float32)), (torch.ones(2, 4, dtype=dtype),))


class Packs(nn.Module):
    """Packs rows of different lengths for an LSTM."""

    def __init__(self, *, returns: bool = False) -> None:
        super().__init__()
        self.lstm, self.returns = nn.LSTM(4, 5, batch_first=True), returns

    def forward(self, x: Tensor) -> Tensor | PackedSequence:
        packed = pack_padded_sequence(x.view(-1, 1, 4), torch.arange(x.shape[0], 0, -1).clamp(max=1), batch_first=True)
        if self.returns:
            return packed
        _, (last, _) = self.lstm(packed)
        found: Tensor = last[-1]
        return found


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (DependsOnValues(), r"modules\.py, line \d+: return x.*torch\.where"),
        (Uses(lambda x: x.reshape(3, -1) * 2), "batch size"),
        (Uses(lambda x: (x, "text")), "output_1 of the module is a str"),
        (Counts(), "keeps no state between calls"),
        (
            Uses(lambda x: x + torch.randn_like(x)),
            "randn_like.*not a pure .* draws random numbers",
        ),
        (Uses(lambda x: x.mean()), "one row for each row of input"),
        (nn.Linear(5, 2), "raised on 3 rows"),
        (Packs(), "packed sequences cannot be exported: give padded rows"),
        (Packs(returns=True), "packed sequences cannot be exported: give padded rows"),
        (Uses(lambda x: x - x.max()), r"reduces all rows of a batch together: .*x\.amax\(1\)"),
        (Uses(lambda x: x * max(x.shape[0], 10)), "computes with the size of the batch"),
        (Uses(lambda x: x + torch.histc(x, 4)), "not on the list of operators"),
        (Uses(lambda x: torch.linalg.inv(x.view(-1, 2, 2))), r"_linalg_check_errors.*: inv_ex"),
        (Uses(lambda x: x.as_strided((x.shape[0], 2, 3), (4, 1, 1))), "as_strided.*not a pure"),
        (Uses(lambda x: functional.normalize(x) @ x.T), "grows with the batch in more than its first dimension"),
        (Cached(), r"past of the module is a dict: .*--output logits.* of logits, hidden"),
    ],
    ids=lambda param: type(param).__name__ if isinstance(param, nn.Module) else None,
)
def test_a_module_that_cannot_be_served_is_refused_with_the_reason(
    module: nn.Module, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=says) as told:
        export(module, (torch.randn(3, 4),))
    assert ("pure" in str(told.value)) == ("pure" in says)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("module", "row"),
    [
        (nn.Linear(8, 3), torch.randn(8)),
        (nn.Conv2d(3, 4, 3), torch.randn(3, 8, 8)),
        (nn.Conv2d(1, 3, 3), torch.randn(1, 8, 8)),
        (nn.Identity(), torch.tensor(1.0)),
    ],
    ids=["vector", "image", "grey image", "number"],
)
def test_an_input_without_a_batch_dimension_is_told_so(module: nn.Module, row: Tensor) -> None:
    with pytest.raises(ExportError, match=r"give a single row as x\[None\]"):
        export(module, (row,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # of torch
def test_what_was_made_of_a_module_is_refused_with_what_to_build_instead() -> None:
    rows = torch.randn(2, 4)
    program = torch.export.export(nn.Linear(4, 3), (rows,))
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})  # type: ignore[no-untyped-call]
    for made, says in (
        (program, "a program of torch.export"),
        (program.module(), "a program of torch.export"),
        (quantised, "quantised .*one scale for all rows"),
        (torch.jit.script(nn.Linear(4, 3)), "TorchScript"),
        (torch.jit.trace(nn.Linear(4, 3), rows), "TorchScript"),  # type: ignore[no-untyped-call]
    ):
        with pytest.raises(ExportError, match=f"the module is {says}.*build the nn.Module"):
            export(made, (rows,))  # type: ignore[arg-type]


def test_only_the_outputs_that_are_named_are_exported() -> None:
    module, rows = Cached().eval(), (torch.randn(2, 4),)
    exported = export(module, rows, outputs=["logits"])
    assert [spec.name for spec in exported.graph.output_specs()] == ["logits"]
    found = in_eager(exported.graph, exported.weights)(*rows)
    assert relative_error(found, run_module(module, rows, outputs=["logits"])) <= 1e-6
    with pytest.raises(ExportError, match=r"no output 'scores', its outputs have of logits, past, hidden"):
        export(module, rows, outputs=["scores"])
    with pytest.raises(ExportError, match="returns no dictionary"):
        export(nn.Linear(4, 3), rows, outputs=["logits"])


def test_data_is_taken_by_name_where_names_are_those_of_the_examples() -> None:
    examples = {"a": torch.zeros(1, 2), "b": torch.zeros(1, 2, dtype=torch.int64)}
    ones, twos = torch.ones(3, 2), 2 * torch.ones(3, 2)
    for data in ({"b": twos, "a": ones}, {"x": ones, "y": twos}, (ones, twos)):
        first, second = in_order(data, examples)
        assert torch.equal(first, ones)
        assert torch.equal(second, twos.long())
        assert second.dtype == torch.int64
