"""Building sequence models: what is written, what is measured, and what is refused with a reason."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, ExportError, RepositoryError
from latebind.domain.model import StageKind, TensorSpec
from latebind.domain.sizes import Dim
from latebind.program.backends import StageFunction, exact_backends
from latebind.program.export import Exported, export, merged
from latebind.program.graph import graph_to_json, read_graph_file
from latebind.program.load import load_program
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import MODEL, SEQUENCE, WEIGHTS, ModelDirectory
from latebind.repository.listing import find_models
from latebind.repository.tensors import read_tensors, tensor_file
from latebind.sequence.build import build_sequence
from latebind.sequence.export import EncodeModule, as_sequence, export_sequence
from latebind.sequence.program import answer_all, timed_batch
from latebind.sequence.stored import load_sequence
from tests.sequences import LONGEST, WORDS, Backwards, backwards, rows_of, some_sentences


@pytest.fixture
def directory(models: Path) -> ModelDirectory:
    (path,) = find_models(models, ["backwards"])
    return ModelDirectory.open(path)


def test_what_is_written_says_all_that_others_need(directory: ModelDirectory) -> None:
    spec, costs = read_spec_and_costs(directory)
    assert spec.kinds == (StageKind.STATIC, StageKind.DECODER)
    assert spec.inputs == (TensorSpec("tokens", "int64", (LONGEST,), padding=0, limit=WORDS, sizes=("length",)),)
    assert (spec.dims, spec.one_size) == ((Dim("length", 1, LONGEST),), False)
    assert spec.outputs == (TensorSpec("tokens", "int64", (LONGEST + 1,), padding=0),)
    wanted = sorted(len(words) + 1 for words in some_sentences(30))
    assert len(costs.output_steps) == 100
    assert (costs.output_steps[0], costs.output_steps[-1]) == (wanted[0], wanted[-1])
    assert abs(np.mean(costs.output_steps) - np.mean(wanted)) < 0.1
    assert (costs.stages[0].lengths[0], costs.stages[0].lengths[-1]) == (1, LONGEST)
    assert costs.stages[1].at(8) > 0


def test_loaded_parts_change_as_the_module_changes_them(directory: ModelDirectory) -> None:
    parts = {part.name: (str(part.change), part.shape) for part in load_sequence(directory).parts}
    assert parts == {
        "length": ("kept", ()),
        "words": ("kept", (LONGEST, WORDS)),
        "sum": ("kept", ()),
        "said": ("written", (2, LONGEST + 1)),
        "steps": ("replaced", ()),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("lengths", [12]), ("parts", []), ("format", 2), ("marks", {"start": 1})],
)
def test_a_directory_whose_files_do_not_fit_is_refused(
    directory: ModelDirectory, tmp_path: Path, name: str, value: object
) -> None:
    altered = {**json.loads(directory.read(SEQUENCE)), name: value}
    files = {file: directory.read(file) for file in directory.files}
    copy = ModelDirectory.create(tmp_path / "m", {**files, SEQUENCE: json.dumps(altered).encode()})
    with pytest.raises(RepositoryError):
        load_sequence(copy)


def test_backends_are_timed_by_whole_batches_that_are_read_and_by_their_first_tokens(directory: ModelDirectory) -> None:
    program, ran = load_sequence(directory), list[tuple[str, int]]()
    most = program.spec.max_batch

    def noted(name: str, stage: StageFunction) -> StageFunction:
        def call(*inputs: Tensor) -> tuple[Tensor, ...]:
            ran.append((name, len(inputs[0])))
            return stage(*inputs)

        return call

    named = zip(("read", "step"), program.stages, strict=True)
    program = replace(program, stages=tuple(noted(*each) for each in named))
    call = timed_batch(program, rows_of(some_sentences(most)), 3)
    call()
    call()
    assert ran == [("read", most), *[("step", most)] * 3] * 2


def few_rows(longest: int = 5) -> Tensor:
    return rows_of([words[:longest] for words in some_sentences(4)], longest)


def as_stored_before(directory: ModelDirectory, to: Path, lengths: Sequence[int]) -> ModelDirectory:
    """Copy a model to `to` as builds stored it once: an encoder for each of some lengths, and no named dimension."""
    files: dict[str, Any] = {name: directory.read(name) for name in directory.files}
    del files["encode.json"]
    parts = {"step": Exported(read_graph_file(directory, "step.json"), dict(read_tensors(directory, WEIGHTS)))}
    for length in lengths:
        rows = {"tokens": few_rows(length), "length": torch.ones(4, dtype=torch.int64)}
        parts[f"encode-{length}"] = export(EncodeModule(Backwards()), rows)
    graphs, weights = merged(parts)
    files |= {f"{name}.json": graph_to_json(graph) for name, graph in graphs.items()}
    files[WEIGHTS] = tensor_file(weights)
    stored = {**json.loads(files[SEQUENCE]), "lengths": list(lengths)}
    model = json.loads(files[MODEL])
    del model["dims"], model["pads"], model["inputs"][0]["sizes"]
    return ModelDirectory.create(
        to, {**files, SEQUENCE: json.dumps(stored).encode(), MODEL: json.dumps(model).encode()}
    )


@pytest.mark.parametrize("backend", [name for name in exact_backends() if name != "compile"])
def test_a_model_that_was_stored_with_an_encoder_for_each_of_some_lengths_answers_alike(
    directory: ModelDirectory, tmp_path: Path, backend: str
) -> None:
    sentences = some_sentences(40, seed=5)
    program = load_sequence(as_stored_before(directory, tmp_path / "before", (8, 10, LONGEST)), backend=backend)
    assert [len(graph.buckets) for graph in program.graphs] == [3, 0]
    assert program.spec == load_sequence(directory).spec
    answers = answer_all(program.twin(), rows_of(sentences).numpy())
    assert [[int(word) for word in row if word] for row in answers] == [backwards(words) for words in sentences]


def test_encoders_of_which_none_takes_the_longest_rows_are_refused(directory: ModelDirectory, tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="build the model again"):
        load_sequence(as_stored_before(directory, tmp_path / "before", (8, 10)))


class Unrolled(Backwards):
    """Reads word by word, in a loop that an export takes for as many words as it sees."""

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        read = [self.embedding(word) for word in tokens.unbind(1)]  # one by one
        return {**super().encode(tokens, length), "words": torch.stack(read, dim=1)}


def test_an_encoder_whose_code_fixes_a_length_becomes_several_and_the_report_says_where(tmp_path: Path) -> None:
    sentences = some_sentences(20, seed=5)
    report = build_sequence(
        Unrolled(), rows_of(sentences), directory=tmp_path / "m", name="m", backends=["eager"], max_batch=4
    )
    told = dict(report.lines)
    assert told["a graph for each"].startswith("length of 1, 2, 3, ")
    assert "# one by one" in told["because"]
    program = load_sequence(report.directory)
    answers = answer_all(program, rows_of(sentences).numpy())
    assert [[int(word) for word in row if word] for row in answers] == [backwards(words) for words in sentences]


def test_graphs_of_which_one_makes_what_the_next_does_not_take_are_told() -> None:
    exported = export_sequence(Backwards(), few_rows())
    (_, value), *others = outputs = exported.step.outputs
    for made, says in ((("scores", value), "'logits'"), (outputs[0], "'more', which is not a part of the state")):
        step = replace(exported.step, outputs=(made, *others, ("more", value)))
        faults = list(replace(exported, step=step).faults(5, Backwards.longest_output))
        assert any(says in fault for fault in faults)
    assert not list(exported.faults(5, Backwards.longest_output))


class Named(Backwards):
    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        return {**super().encode(tokens, length), "token": length + 1}


class NoEnd(Backwards):
    end = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Named(), "give each its own name"),
        (NoEnd(), r"it lacks 'end' \(int, the token that ends an answer\): give the class"),
    ],
)
def test_a_module_that_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, module: Backwards, reason: str
) -> None:
    with pytest.raises(ExportError, match=reason):
        build_sequence(module, few_rows(), directory=tmp_path / "m", name="m", backends=["eager"])
    assert not list(tmp_path.iterdir())


def test_rows_that_are_no_tokens_and_a_load_as_a_network_without_steps_are_refused(
    directory: ModelDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="int64"):
        build_sequence(Backwards(), torch.zeros(2, 5), directory=tmp_path / "m", name="m", backends=["eager"])
    with pytest.raises(ConfigError, match="sequence model"):
        load_program(directory)


def test_the_module_in_the_documents_can_be_exported_and_one_without_attributes_hears_all_that_it_lacks() -> None:
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    scope: dict[str, Any] = {}
    exec(page.partition("## Sequence models\n")[2].partition("```python\n")[2].partition("```")[0], scope)
    repeater = scope["Repeater"]
    exported = export_sequence(repeater().eval(), torch.randint(3, 100, (4, 8)))
    assert {part.name for part in exported.parts} == {"hidden", "cell"}
    del repeater.padding, repeater.blank
    with pytest.raises(ExportError, match=r"it lacks 'padding' \(.*\), 'blank' \(.*\): give the class"):
        as_sequence(repeater())


class Pads(Backwards):
    """Counts what is behind the row."""

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        return super().encode(tokens, length) | {"sum": tokens.sum(dim=1) + tokens.shape[1]}


class Shares(Backwards):
    """Reads words less what the rows of a batch have in common."""

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        state = super().encode(tokens, length)
        return state | {"words": state["words"] - state["words"].mean(0)}


class Looks(Backwards):
    """Writes what other rows have written too."""

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> dict[str, Tensor]:
        changed = super().step(token, position, **state)
        return changed | {"steps": changed["steps"] + 0 * state["steps"].sum(0)}


@pytest.mark.parametrize(
    ("module", "rows", "says"),
    [
        (
            Pads,
            rows_of([words[:10] for words in some_sentences(4)], 10),
            "it is padded to 10, as it is beside a longer row",
        ),
        (Shares, few_rows(), "words of a row"),
        (Looks, few_rows(), "steps of a row"),
    ],
)
def test_a_module_whose_rows_depend_on_each_other_is_refused(
    module: type[Backwards], rows: Tensor, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=f"rows depend on each other.*{says}"):
        build_sequence(module(), rows, directory=tmp_path / "m", name="m", backends=["eager"])
