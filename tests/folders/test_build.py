"""Folders of many architectures, over all tasks: what is built answers raw inputs as the folder's own pipeline does."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from latebind.domain.model import Media, Task
from latebind.folders.build import read_folder
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.preprocessor import CUT, Raw
from latebind.preprocessing.settings import PREPROCESSING, TOKENIZER
from latebind.program.load import load_program
from latebind.program.metadata import read_model
from latebind.program.program import Program
from latebind.program.verify import relative_error
from latebind.repository.directory import ModelDirectory
from tests.folders.making import CASES, made_case, make_folder, pictures, reference, sounds, texts

INPUTS = 100
SAME = 1e-4  # of the largest number
CHEAP = ("dinov2",)  # in the fast tests
# Built in a way that another one is built in too: as BERT, BERT with the mean, RoBERTa and Wav2Vec2.
ALIKE = ("albert", "distilbert", "electra_max", "mpnet", "hubert")
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
OUTPUTS = {Task.EMBED: ("embedding",), Task.DETECT: ("logits", "boxes")}


@dataclass(frozen=True, slots=True)
class Built:
    """What was made of a case: its folder, and the model directory."""

    path: Path
    directory: ModelDirectory


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Return a function that builds a case once."""

    def build(name: str) -> Built:
        place = made_case(tmp_path_factory, name)
        return Built(place / "folder", ModelDirectory.open(place / "models" / name / "1"))

    return build


def answers(built: Built, given: dict[str, Sequence[Raw]]) -> list[tuple[torch.Tensor, ...]]:
    """Return what a server would answer to each row: its own preprocessor, then the program."""
    preprocessor = open_preprocessor(built.directory, read_model(built.directory).about)
    program: Program = load_program(built.directory)
    found = []
    for row in preprocessor.prepare(given, CUT):
        tensors = [torch.from_numpy(row.tensors[spec.name])[None] for spec in program.spec.inputs]
        found.append(program.run(*tensors))
    return found


def cases() -> list[Any]:
    """All cases, with their marks; those that differ from another in their weights' names alone run thoroughly."""
    rare = [] if THOROUGH else [pytest.mark.skip("much like another: HYPOTHESIS_PROFILE=thorough runs it")]
    return [
        pytest.param(name, marks=[*[pytest.mark.slow] * (name not in CHEAP), *(rare if name in ALIKE else [])])
        for name in CASES
    ]


@pytest.mark.parametrize("name", cases())
def test_answers_to_raw_inputs_are_those_of_the_folders_own_pipeline(name: str, build: Callable[[str], Built]) -> None:
    case, built = CASES[name], build(name)
    stored = read_model(built.directory)
    about = stored.about
    assert (about.task, about.activation, len(about.labels)) == (case.task, case.activation, case.labels)
    assert about.raw[0].name == case.of
    assert [spec.name for spec in stored.outputs] == [*OUTPUTS.get(case.task, ("logits",))]
    assert PREPROCESSING in built.directory.files
    assert (TOKENIZER in built.directory.files) == (case.of == "text")
    draw: dict[str, Callable[[int], Sequence[Any]]] = {"text": texts, "image": pictures, "sound": sounds}
    raw = draw[case.of](INPUTS)
    pair = len(about.raw) == 2
    seconds = texts(INPUTS, seed=1) if pair else []
    given: dict[str, Sequence[Raw]] = {case.of: raw, "text_pair": seconds} if pair else {case.of: raw}
    found, wanted = answers(built, given), reference(name, built.path)(raw, seconds)
    for one, own in zip(found, wanted, strict=True):
        assert [tensor.shape for tensor in one] == [tensor.shape for tensor in own]
        assert relative_error(one, own) < SAME
    if case.task is Task.CLASSIFY:
        assert about.labels[:2] == ("no", "yes")


@pytest.mark.slow
def test_a_pair_may_be_left_out(build: Callable[[str], Built]) -> None:
    built, some = build("bert"), texts(10)
    for one, own in zip(answers(built, {"text": some}), reference("bert", built.path)(some, []), strict=True):
        assert relative_error(one, own) < SAME


@pytest.mark.slow
def test_texts_share_a_batch_and_are_as_long_as_the_network_takes(build: Callable[[str], Built]) -> None:
    longest = {"bert": 48, "roberta_many": 46, "bert_mean": 24}
    for name, most in longest.items():
        stored = read_model(build(name).directory)
        assert [(dim.name, dim.least, dim.most) for dim in stored.dims] == [("L", 1, most)]
        assert stored.pads


@pytest.mark.slow
def test_inputs_have_the_names_that_the_network_has(build: Callable[[str], Built]) -> None:
    assert [spec.name for spec in read_model(build("bert_mean").directory).inputs] == ["input_ids", "attention_mask"]
    assert [spec.shape for spec in read_model(build("vit").directory).inputs] == [(3, 32, 32)]
    stored = read_model(build("wav2vec2").directory)
    assert [(dim.name, dim.least, dim.most) for dim in stored.dims] == [("T", 60, 2_400)]
    assert stored.about.raw[0].media is Media.SOUND


def test_a_tokenizer_is_made_of_the_files_of_a_slow_one(tmp_path: Path) -> None:
    folder = make_folder("bert", tmp_path / "folder")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    read = read_folder(str(folder))
    (row,) = read.preprocessor.prepare({"text": ["Please book a table."]})
    words = [next(word for word, number in vocabulary.items() if number == one) for one in row.tensors["input_ids"]]
    assert (words[0], words[-1]) == ("[CLS]", "[SEP]")
    assert "".join(words[1:-1]).replace("##", "") == "pleasebookatable."
