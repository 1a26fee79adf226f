import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.export import export, run_module
from latebind.program.operators import SYM_SIZE
from latebind.program.rebuild import run_eagerly
from latebind.program.verify import relative_error
from latebind.program.vocabulary import limited, unlimited
from tests.program.modules import (
    Branchy,
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


def test_words_are_limited_by_the_table_that_they_are_looked_up_in() -> None:
    words = export(Translator(), {"words": torch.randint(0, 20, (2, 5))})
    assert [spec.limit for spec in limited(words.graph, words.weights)] == [20]
    assert unlimited(limited(words.graph, words.weights)) == words.graph.inputs
    numbers = export(TwoOutputs(), (torch.randn(2, 6),))
    assert [spec.limit for spec in limited(numbers.graph, numbers.weights)] == [None]


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


def test_a_refusal_names_the_line_and_nothing_else_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match=r"modules\.py, line \d+: return x"):
        export(DependsOnValues(), (torch.randn(3, 4),))
    assert capfd.readouterr().err == ""


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(ExportError, match="different names"):
        export(TwoInputs(), (torch.randn(2, 3, 8, 8), torch.randn(2, 4)), input_names=("x", "x"))
