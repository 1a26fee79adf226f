"""Intents of texts: data in its published forms, texts made in its place, and a folder that is fine-tuned on them."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from examples.intents.data import OUT_OF_SCOPE, PARTS, read
from examples.intents.finetune import answers, finetune, main
from latebind.domain.errors import ConfigError
from latebind.domain.model import Media, Task
from latebind.folders.build import read_folder
from latebind.folders.rows import read_labelled
from tests.folders.making import SENTENCES, make_folder

TEXTS = [(f"{sentence} {word}", str(place % 3)) for place, sentence in enumerate(SENTENCES) for word in ("a", "so", "")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("bert_mean", tmp_path_factory.mktemp("folders") / "encoder")


def test_the_texts_of_clinc150_are_read_as_they_are_published_and_from_tables(tmp_path: Path) -> None:
    (tmp_path / "data_full.json").write_text(
        json.dumps(
            {part: [[f"{part} text", "yes"]] for part in PARTS} | {"oos_test": [["what?", "oos"]], "oos_val": []}
        )
    )
    wanted = {part: [(f"{part} text", "yes")] for part in PARTS}
    wanted["test"].append(("what?", OUT_OF_SCOPE))
    assert read(tmp_path / "data_full.json") == wanted
    for part, texts in wanted.items():
        with gzip.open(tmp_path / f"clinc150_{part}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("".join(f"{label}\t{text}\n" for text, label in texts))
    assert read(tmp_path) == wanted


def test_data_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text("[1]")
    for path, said in ((tmp_path / "some.json", "is no data_full.json"), (tmp_path, "clinc150_train.tsv.gz cannot")):
        with pytest.raises(ConfigError, match=said):
            read(path)


def test_texts_that_are_made_have_all_labels_in_all_parts_and_none_twice() -> None:
    made = read()
    assert read() == made
    labels = {label for _, label in made["train"]}
    assert OUT_OF_SCOPE in labels
    for part in PARTS:
        assert {label for _, label in made[part]} == labels
    texts = [text for part in PARTS for text, _ in made[part]]
    assert len(set(texts)) == len(texts) == 960


@pytest.mark.slow
def test_a_folder_is_fine_tuned_once_and_again_only_for_something_else(base: Path, tmp_path: Path) -> None:
    told = list[float]()
    folder = finetune(base, TEXTS, tmp_path / "folder", epochs=300, progress=lambda text, share: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1.0
    right = [said == label for said, (_, label) in zip(answers(folder, TEXTS), TEXTS, strict=True)]
    assert sum(right) > 0.6 * len(right)  # a third by chance
    found = read_folder(str(folder))
    assert (found.about.task, found.about.labels) == (Task.CLASSIFY, ("0", "1", "2"))

    weights = (folder / "model.safetensors").read_bytes()
    told.clear()
    assert finetune(base, TEXTS, folder, epochs=300, progress=lambda text, share: told.append(share)) == folder
    assert not told
    assert finetune(base, TEXTS, tmp_path / "same", epochs=300) != folder
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == weights
    finetune(base, TEXTS, folder, epochs=300, seed=1)
    assert (folder / "model.safetensors").read_bytes() != weights
    with pytest.raises(ConfigError, match="is there, and no folder that this wrote"):
        finetune(base, TEXTS, base)


@pytest.mark.slow
def test_the_command_writes_tables_that_a_build_takes(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--base", str(base), "--out", str(tmp_path), "--threads", "1", "--epochs", "1"])
    assert "right on test: " in capsys.readouterr().out
    made = read()
    labels = read_folder(str(tmp_path / "intents")).about.labels
    labelled = read_labelled(tmp_path / "intents.csv", Media.TEXT, labels)
    assert labelled.splits == ["train"] * 480 + ["validation"] * 240
    assert [labels[number] for number in labelled.labels[:480]] == [label for _, label in made["train"]]
    with (tmp_path / "unseen.csv").open(encoding="utf-8", newline="") as file:
        unseen = {row["text"] for row in csv.DictReader(file)}
    assert unseen | {*labelled.raw["text"][480:]} == {text for part in ("val", "test") for text, _ in made[part]}
    assert len(unseen) == 240
