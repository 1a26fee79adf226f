"""A folder of Hugging Face served from Python: built once, with data, and what is refused."""

import json
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import latebind
from latebind.domain.errors import ConfigError
from latebind.learned.metadata import read_caches
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from tests.folders.making import make_folder
from tests.working import measured_by_work

QUICK: dict[str, Any] = {"backends": ("eager",), "max_batch": 2, "dims": [latebind.Dim("L", 1, 16)]}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("bert", tmp_path_factory.mktemp("folders") / "bert")


def versions(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdecimal())


@pytest.mark.slow
def test_a_folder_answers_texts_and_is_built_once(bert: Path, tmp_path: Path) -> None:
    for source in (bert, str(bert)):
        with latebind.serving(source, folder=tmp_path, name="answers", deadline=30.0, **QUICK) as url:
            body = json.dumps({"inputs": "how much money do i have"}).encode()
            with urllib.request.urlopen(f"{url}/predict", body, timeout=60) as reply:
                assert {one["label"] for one in json.load(reply)} == {"no", "yes", "perhaps"}
    assert versions(tmp_path / "answers") == ["1"]
    assert [dim.written() for dim in read_model(ModelDirectory.open(tmp_path / "answers" / "1")).dims] == ["1..16"]
    changed = json.loads((bert / "config.json").read_text())
    again = tmp_path / "again"
    again.mkdir()
    for file in bert.iterdir():
        (again / file.name).write_bytes(file.read_bytes())
    (again / "config.json").write_text(json.dumps(changed | {"id2label": {"0": "a", "1": "b", "2": "c"}}))
    with latebind.serving(again, folder=tmp_path, name="answers", **QUICK):
        assert versions(tmp_path / "answers") == ["1", "2"]


@pytest.mark.slow
def test_learned_caches_are_made_of_a_table(bert: Path, tmp_path: Path) -> None:
    random, file = Random(0), tmp_path / "rows.csv"
    lines = [f"{' '.join(random.choices(['dog', 'fox', 'money'], k=6))},{place % 3}" for place in range(600)]
    file.write_text("\n".join(["text,label", *lines]))
    with measured_by_work(), latebind.serving(bert, folder=tmp_path / "models", data=file, fidelity=0.5, **QUICK):
        assert read_caches(ModelDirectory.open(tmp_path / "models" / "bert" / "1")) is not None


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ((), {"samples": torch.ones(2, 3)}, "samples is not an option of a Hugging Face folder, which takes data"),
        ((), {"outputs": ("logits",)}, "outputs is not an option of a Hugging Face folder"),
        ((torch.ones(2, 3),), {}, "example_inputs: a folder defines what it reads"),
        ((), {"dims": {"input_ids": {1: latebind.Dim("L", 1, 16)}}}, "for a folder give the ranges"),
        ((), {"task": "tag"}, "is built for classify or rerank or embed"),
        ((), {"data": "rows.csv"}, "rows.csv cannot be read"),
        ((), {"fidelity": 97.0}, "give the share of equal answers"),
    ],
)
def test_what_a_folder_has_no_use_for_is_refused(
    given: tuple[Any, ...], options: dict[str, Any], said: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        latebind.serving(bert, *given, folder=tmp_path, **options).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_and_a_module_without_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'gone': there is no such folder"):
        latebind.serving("gone", folder=tmp_path).__enter__()
    with pytest.raises(ConfigError, match="example_inputs: give rows like those to be served"):
        latebind.serving(torch.nn.Linear(2, 2), folder=tmp_path).__enter__()
    with pytest.raises(ConfigError, match="data is not an option of a module, which takes samples"):
        latebind.serving(torch.nn.Linear(2, 2), torch.ones(2, 2), data="rows.csv", folder=tmp_path).__enter__()
