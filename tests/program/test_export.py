from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.agreement import relative_error
from latebind.program.cut import cut_points
from latebind.program.export import export, run_module
from latebind.program.graph import graph_from_json, graph_to_json
from latebind.program.operators import SYM_SIZE
from latebind.program.rebuild import run_eagerly
from tests.program.modules import (
    Branchy,
    Cached,
    Counts,
    DependsOnValues,
    FixedBatch,
    GivesText,
    Mean,
    Noisy,
    Translator,
    TwoInputs,
    TwoOutputs,
)


def test_names_dtypes_and_shapes_of_inputs_and_outputs_are_kept() -> None:
    exported = export(TwoInputs(), {"image": torch.randn(1, 3, 8, 8), "vector": torch.randn(1, 4)})
    assert exported.graph.inputs == (TensorSpec("image", "float32", (3, 8, 8)), TensorSpec("vector", "float32", (4,)))
    assert exported.graph.output_specs() == (TensorSpec("output", "float32", (5,)),)


def test_inputs_of_names_that_the_module_does_not_know_go_in_order() -> None:
    image, vector = torch.randn(3, 3, 8, 8), torch.randn(3, 4)
    exported = export(TwoInputs(), {"picture": image, "place": vector})
    assert [spec.name for spec in exported.graph.inputs] == ["picture", "place"]
    assert run_module(TwoInputs(), {"picture": image, "place": vector})[0].shape == (3, 5)


def test_names_of_which_the_module_knows_only_some_are_refused() -> None:
    with pytest.raises(ExportError, match=r"forward\(image, vector\) knows no place"):
        export(TwoInputs(), {"image": torch.randn(1, 3, 8, 8), "place": torch.randn(1, 4)})


def test_a_dictionary_of_outputs_keeps_its_names() -> None:
    exported = export(TwoOutputs(), (torch.randn(2, 6),))
    assert [(spec.name, spec.shape) for spec in exported.graph.output_specs()] == [("features", (8,)), ("scores", (3,))]


def test_integer_inputs_stay_integers_and_any_batch_size_runs() -> None:
    module = Translator().eval()
    exported = export(module, {"words": torch.randint(0, 20, (2, 5))})
    assert exported.graph.inputs == (TensorSpec("words", "int64", (5,)),)
    for batch in (1, 2, 7):
        words = torch.randint(0, 20, (batch, 5))
        found = run_eagerly(exported.graph, exported.weights, (words,))
        assert relative_error(found, run_module(module, (words,))) <= 1e-5


def test_batch_norms_behind_convolutions_are_folded_into_them() -> None:
    module = Branchy().eval()
    exported = export(module, (torch.randn(2, 3, 8, 8),))
    assert not [node.op for node in exported.graph.nodes if "batch_norm" in node.op]
    image = torch.randn(3, 3, 8, 8)
    found = run_eagerly(exported.graph, exported.weights, (image,))
    assert relative_error(found, run_module(module, (image,))) <= 1e-5


def test_a_tied_weight_is_stored_once() -> None:
    first = nn.Linear(4, 4, bias=False)
    second = nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    exported = export(nn.Sequential(first, nn.Tanh(), second), (torch.randn(2, 4),))
    assert len(exported.weights) == 1


def test_what_depends_on_weights_alone_is_computed_at_export() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.softmax(self.weight, 0)

    exported = export(Scaled(), (torch.randn(2, 3),))
    assert [node.op for node in exported.graph.nodes] == ["aten.mul.Tensor"]


def test_the_batch_size_is_read_off_an_input() -> None:
    exported = export(Translator(), {"words": torch.randint(0, 20, (2, 5))})
    sizes = [node for node in exported.graph.nodes if node.op == SYM_SIZE]
    assert sizes
    assert all(list(node.values()) == ["words"] for node in sizes)


def test_a_copy_that_spreads_rows_may_be_taken_out_before_a_view() -> None:
    class Spread(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            spread = functional.dropout(x[:, None].expand(-1, 3, -1), 0.5, self.training)
            return spread.unsqueeze(3).reshape(x.shape[0] * 3, 4).exp().reshape(x.shape[0], 12)

    x = torch.randn(2, 4)
    exported = export(Spread(), (x,))
    assert not [node.op for node in exported.graph.nodes if "clone" in node.op]
    assert torch.equal(run_eagerly(exported.graph, exported.weights, (x,))[0], Spread().eval()(x))


def test_a_module_in_training_mode_is_exported_for_inference_and_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    exported = export(module, (torch.randn(2, 3),))
    assert module.training
    assert [node.op for node in exported.graph.nodes] == ["aten.linear.default"]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (DependsOnValues(), r"torch\.where"),
        (FixedBatch(), "batch size"),
        (GivesText(), "output_1 of the module is a str"),
        (Counts(), "keeps no state between calls"),
        (Noisy(), "randn_like"),
        (Mean(), "one row for each row of input"),
        (nn.Linear(5, 2), "raised on 3 rows"),
    ],
)
def test_a_module_that_cannot_be_served_is_refused_with_the_reason(module: nn.Module, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        export(module, (torch.randn(3, 4),))


class Packs(nn.Module):
    """Packs rows of different lengths for an LSTM."""

    def __init__(self, *, returns: bool = False) -> None:
        super().__init__()
        self.lstm, self.returns = nn.LSTM(4, 5, batch_first=True), returns

    def forward(self, x: Tensor) -> Tensor | PackedSequence:
        lengths = torch.arange(x.shape[0], 0, -1)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        if self.returns:
            return packed
        _, (last, _) = self.lstm(packed)
        found: Tensor = last[-1]
        return found


@pytest.mark.parametrize("returns", [False, True])
def test_packed_sequences_are_refused_with_what_to_do_without_them(returns: bool) -> None:
    with pytest.raises(ExportError, match="packed sequences cannot be exported: give padded rows"):
        export(Packs(returns=returns), (torch.randn(3, 6, 4),))


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
    with pytest.raises(ExportError, match=r"no batch dimension: .*x\[None\]"):
        export(module, (row,))


class Uses(nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: functional.dropout(x, 0.5, True), "not a pure tensor operation, for it draws random numbers"),
        (lambda x: x - x.max(), r"takes all rows of a batch together: .*x\.amax\(1\)"),
        (lambda x: x * max(x.shape[0], 10), "computes with the size of the batch"),
        (lambda x: x + torch.histc(x, 4), "not on the list of operators"),
        (lambda x: torch.linalg.inv(x.view(-1, 2, 2)), r"_linalg_check_errors.*: inv_ex"),
    ],
    ids=["random", "all rows", "batch size", "no kernel", "raises"],
)
def test_a_refused_operator_is_told_with_its_own_reason(function: Callable[[Tensor], Tensor], says: str) -> None:
    with pytest.raises(ExportError, match=says) as told:
        export(Uses(function), (torch.randn(3, 4),))
    assert ("pure" in str(told.value)) == ("pure" in says)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # of torch
def test_what_was_made_of_a_module_is_refused_with_what_to_build_instead() -> None:
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),))
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})  # type: ignore[no-untyped-call]
    for made, says in (
        (program, "a program of torch.export"),
        (program.module(), "a program of torch.export"),
        (quantised, "quantised .*one scale for all rows"),
    ):
        with pytest.raises(ExportError, match=f"the module is {says}.*build the nn.Module"):
            export(made, (torch.randn(2, 4),))  # type: ignore[arg-type]


def test_a_refusal_names_the_line_and_nothing_else_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match=r"modules\.py, line \d+: return x"):
        export(DependsOnValues(), (torch.randn(3, 4),))
    assert capfd.readouterr().err == ""


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(ExportError, match="different names"):
        export(TwoInputs(), (torch.randn(2, 3, 8, 8), torch.randn(2, 4)), input_names=("x", "x"))


def test_outputs_that_are_no_tensors_are_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(ExportError, match=r"past of the module is a dict: .*--output logits.* of logits, hidden"):
        export(Cached(), (torch.randn(2, 4),))


def test_only_the_outputs_that_are_named_are_exported() -> None:
    module, rows = Cached().eval(), (torch.randn(2, 4),)
    exported = export(module, rows, outputs=["logits"])
    assert [spec.name for spec in exported.graph.output_specs()] == ["logits"]
    found = run_eagerly(exported.graph, exported.weights, rows)
    assert relative_error(found, run_module(module, rows, outputs=["logits"])) <= 1e-6


def test_an_output_that_the_module_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ExportError, match=r"no output 'scores', its outputs have of logits, past, hidden"):
        export(Cached(), (torch.randn(2, 4),), outputs=["scores"])
    with pytest.raises(ExportError, match="returns no dictionary"):
        export(nn.Linear(4, 3), (torch.randn(2, 4),), outputs=["logits"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by torch: that is why they are refused
def test_scripted_and_traced_modules_are_refused_with_what_to_build_instead() -> None:
    traced = torch.jit.trace(nn.Linear(4, 3), torch.randn(2, 4))  # type: ignore[no-untyped-call]
    for module in (torch.jit.script(nn.Linear(4, 3)), traced):
        with pytest.raises(ExportError, match=r"TorchScript.*build the nn\.Module"):
            export(module, {"input": torch.randn(2, 4)})


def test_a_count_of_calls_that_nobody_reads_is_left_out() -> None:
    class Counted(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x)  # type: ignore[no-any-return]

    module = Counted().eval()
    rows = (torch.randn(2, 4),)
    exported = export(module, rows)
    assert set(exported.weights) == {"layer.weight", "layer.bias"}
    assert relative_error(run_eagerly(exported.graph, exported.weights, rows), run_module(module, rows)) <= 1e-6


def test_pooling_of_channels_last_to_one_cell_is_exported() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)
            self.pool = nn.AdaptiveAvgPool2d(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(self.layer(x).permute(0, 3, 1, 2)).flatten(1)  # type: ignore[no-any-return]

    module = Last().eval()
    exported = export(module, (torch.randn(2, 5, 5, 3),))
    rows = (torch.randn(4, 5, 5, 3),)
    assert relative_error(run_eagerly(exported.graph, exported.weights, rows), run_module(module, rows)) <= 1e-6


def test_other_views_of_memory_are_refused() -> None:
    class Windows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.as_strided((x.shape[0], 3, 4), (6, 1, 1))

    with pytest.raises(ExportError, match="as_strided"):
        export(Windows(), (torch.randn(2, 6),))


def test_complex_numbers_may_be_inside_but_not_at_the_border_or_a_cut() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = torch.fft.rfft(x.relu()).abs()
            return found

    rows = (torch.randn(3, 8),)
    exported = export(Spectrum(), rows)
    graph = graph_from_json(graph_to_json(exported.graph))
    assert relative_error(run_eagerly(graph, exported.weights, rows), run_module(Spectrum(), rows)) <= 1e-6
    made = [graph.nodes[point].type for point in cut_points(graph)]
    assert {kind.dtype for kind in made if kind is not None} == {"float32"}
    with pytest.raises(ExportError, match=r"complex64.*view_as_real"):
        export(Spectrum(), (torch.randn(3, 8).to(torch.complex64),))


def test_a_module_in_bfloat16_is_refused_with_what_to_do() -> None:
    with pytest.raises(ExportError, match=r"an input of the module has dtype bfloat16.*module\.float\(\)"):
        export(nn.Linear(4, 3).bfloat16(), (torch.randn(2, 4).bfloat16(),))


def test_similarities_of_all_rows_of_a_batch_are_refused() -> None:
    class Compared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.normalize(x) @ x.T

    with pytest.raises(ExportError, match="grows with the batch in more than its first dimension"):
        export(Compared(), (torch.randn(2, 4),))


def test_lengths_and_windows_are_exported() -> None:
    class Normed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = functional.normalize(x).unfold(1, 3, 1).sum(-1)
            return found

    rows = (torch.randn(2, 8),)
    exported = export(Normed(), rows)
    assert relative_error(run_eagerly(exported.graph, exported.weights, rows), run_module(Normed(), rows)) <= 1e-6


def test_an_empty_cache_that_a_state_is_joined_to_leaves_the_graph() -> None:
    class Remembers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([torch.tensor([]), x * 2], dim=-2)

    rows = (torch.randn(2, 5, 4),)
    exported = export(Remembers(), rows)
    assert [node.op for node in exported.graph.nodes] == ["aten.mul.Tensor"]
    assert relative_error(run_eagerly(exported.graph, exported.weights, rows), run_module(Remembers(), rows)) <= 1e-6
