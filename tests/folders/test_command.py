"""`latebind build FOLDER` as people type it: models that take texts, with learned caches, and options without a use."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from latebind.cli.main import app
from latebind.cli.sources import rows_for
from latebind.domain.model import Task
from latebind.learned.metadata import read_caches
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from tests.folders.making import WORDS, make_folder

QUICK = ["--backend", "eager", "--max-batch", "2", "--min-stage-ms", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("distilbert", tmp_path_factory.mktemp("folders") / "answers")


@pytest.mark.slow
def test_a_folder_is_built_with_learned_caches_and_listed(folder: Path, tmp_path: Path) -> None:
    random, models, told = Random(0), tmp_path / "models", tmp_path / "told.json"
    rows = [{"words": " ".join(random.choices(WORDS, k=6)), "answer": place // 300} for place in range(900)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ["--data", str(tmp_path / "rows.jsonl"), "--text-column", "words", "--label-column", "answer"]
    learn = ["--lessons", "2000", "--fidelity", "0.5", "--answers", "0", "--kind", "light"]
    command = ["build", str(folder), "--out", str(models), *QUICK, "--dim", "L=1..16", *data, *learn]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    directory = ModelDirectory.open(models / "answers" / "1")
    stored = read_model(directory)
    assert stored.about.task is Task.CLASSIFY
    assert [dim.written() for dim in stored.dims] == ["1..16"]
    assert read_caches(directory) is not None
    (tmp_path / "seen.jsonl").write_text(
        "\n".join(json.dumps({"text": row["words"], "label": row["answer"]}) for row in rows[:400])
    )
    again = ["calibrate", str(models), "--model", "answers", "--data", str(tmp_path / "seen.jsonl")]
    done = CliRunner().invoke(app, [*again, "--fidelity", "0.5", "--answers", "0"])
    assert done.exit_code == 0, done.output
    inputs, labels = rows_for(directory, str(tmp_path / "seen.jsonl"), None)
    assert labels is not None
    assert labels.tolist() == [row["answer"] for row in rows[:400]]
    assert [len(each) for each in inputs.values()] == [400, 400]
    listed = CliRunner().invoke(app, ["models", str(models), "--json", str(told)])
    assert listed.exit_code == 0, listed.output
    (row,) = json.loads(told.read_text())["models"]
    assert (row["task"], row["takes"], row["labels"]) == ("classify", "text, text_pair (optional)", 3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--input", "input_ids=int64:L"], "--input: the folder defines that"),
        (["--output", "logits"], "--output: the folder defines that"),
        (["--weights", "w.safetensors"], "--weights: the folder defines that"),
        (["--data-option", "a=b"], "--data-option: the folder defines that"),
        (["--task", "tag"], "is built for classify or rerank or embed"),
        (["--dim", "H=1..8"], "--dim H: what varies in the inputs"),
        (["--fidelity", "cosine:0.99@0.97", "--data", "rows.csv"], "a cosine is promised only for embeddings, and "),
        (["--task", "embed", "--fidelity", "cosine:0.99@0.97"], "a cosine is tested on texts like those to be served"),
        (["--fidelity", "top3@0.97"], "The order of a list cannot be promised"),
        (["--data", "rows.xlsx"], "give a table of texts"),
    ],
)
def test_options_without_a_use_for_a_folder_are_refused(
    more: list[str], said: str, folder: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["build", str(folder), "--out", str(tmp_path / "models"), *QUICK, *more])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "models").exists()


def test_a_folder_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["build", str(tmp_path / "gone"), "--input", "x=float32:3"])
    assert done.exit_code == 2
    assert "no such folder; write a function as" in " ".join(done.output.split())
