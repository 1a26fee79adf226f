"""Folders whose networks write texts, built as people type it: answers are the texts that `generate` writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.domain.errors import ConfigError
from latebind.domain.model import Media, RawInput, Task
from latebind.folders.build import read_folder
from latebind.preprocessing.opening import open_preprocessor
from latebind.preprocessing.preprocessor import CUT
from latebind.preprocessing.text import TextPreprocessor
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.sequence.program import answer_all
from latebind.sequence.stored import load_sequence
from tests.folders.making import byte_pairs, texts, unigrams
from tests.folders.writers import Network, bart, filled, marian, t5, without_padding

transformers = pytest.importorskip("transformers")

QUICK = ["--backend", "eager", "--max-batch", "4", "--dim", "L=1..32", "--dim", "M=1..12"]


def write_folder(folder: Path, made: Callable[..., Network], tokenizer: Any) -> Path:
    made(words=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("t5") / "writer", t5, unigrams())


@pytest.fixture(scope="module")
def bart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bart") / "writer", bart, byte_pairs())


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose own tokenizer is code, beside a file that says the same."""
    folder = write_folder(tmp_path_factory.mktemp("marian") / "writer", marian, unigrams())
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "tokenizer_class": "MarianTokenizer"}))
    return folder


def generated(folder: Path, text: str) -> str:
    """Return what transformers makes of a text, by what lies in the folder."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given = tokenizer(text, truncation=True, max_length=32, return_tensors="pt")
    asked = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    (row,) = network.generate(**asked, num_beams=1, do_sample=False, max_new_tokens=12)
    said: str = tokenizer.backend_tokenizer.decode(row.tolist()[1:], skip_special_tokens=True)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5_folder", "bart_folder", "marian_folder"])
def test_a_text_is_answered_by_the_text_that_transformers_generates(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder, models = request.getfixturevalue(name), tmp_path / "models"
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps({"said": text}) for text in texts(30, seed=3)))
    more = ["--data", str(data), "--text-column", "said"]
    done = CliRunner().invoke(app, ["build", str(folder), "--out", str(models), *QUICK, *more])
    assert done.exit_code == 0, done.output
    assert "generate, of text" in done.output
    directory = ModelDirectory.open(models / "writer" / "1")
    spec, costs = read_spec_and_costs(directory)
    assert (spec.about.task, spec.about.raw) == (Task.GENERATE, (RawInput("text", Media.TEXT),))
    assert (spec.inputs[0].shape, spec.outputs[0].shape) == ((32,), (12,))
    assert len(costs.output_steps) == 100
    preprocessor, program = open_preprocessor(directory, spec.about), load_sequence(directory)
    assert isinstance(preprocessor, TextPreprocessor)
    assert preprocessor.decoder is not None
    some, padding = texts(25, seed=1), program.marks.padding
    rows = [row.tensors["tokens"].tolist() for row in preprocessor.prepare({"text": some}, CUT)]
    answers = answer_all(program, filled(rows, padding, 32).numpy()).tolist()
    said = [preprocessor.decoder.text(without_padding(row, padding)) for row in answers]
    assert said == [generated(folder, text) for text in some]
    assert len(set(said)) > 3


def test_how_long_texts_and_answers_are_follows_from_the_folder_unless_it_is_said(bart_folder: Path) -> None:
    folder = read_folder(str(bart_folder))
    assert folder.reading.settings.longest == 40  # its positions
    assert folder.module.longest_output == 18  # its generation_config.json has max_length=19
    assert "text" in folder.reading.trials


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        (["--dim", "H=1..8"], "--dim H: "),
        (["--dim", "L=2..8"], "texts may have any length: give 1..8"),
        (["--data", "rows.xlsx"], "give a table of texts"),
        (["--task", "embed"], "is built for generate"),
    ],
)
def test_options_without_a_use_for_a_writer_are_refused(
    dims: list[str], says: str, bart_folder: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["build", str(bart_folder), "--out", str(tmp_path / "models"), *dims])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_a_network_of_another_form_is_refused(bart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for file in bart_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**said, "model_type": "mvp", "architectures": ["MvpForConditionalGeneration"]})
    )
    with pytest.raises(ConfigError, match="is a mvp network, and text is generated only by those of T5"):
        read_folder(str(folder))
