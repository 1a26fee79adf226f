"""Intents of texts: data in its published forms, texts made in its place, and a folder that is fine-tuned on them."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForSequenceClassification

from examples.intents.data import OUT_OF_SCOPE, PARTS, read
from examples.intents.finetune import Exits, answers, finetune, main
from examples.intents.varied import varied
from latebind.domain.errors import ConfigError
from latebind.domain.model import Media, Task
from latebind.folders.build import read_folder
from latebind.folders.rows import read_labeled
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


def test_texts_made_of_others_have_their_words_and_are_the_same_for_a_seed() -> None:
    texts = [text for text, _ in read()["train"]]
    made = varied(texts, copies=2, seed=0)
    assert made == varied(texts, copies=2, seed=0) != varied(texts, copies=2, seed=1)
    assert len(made) == 2 * len(texts)
    assert {word for text in made for word in text.split()} <= {word for text in texts for word in text.split()}
    assert all(text.split() for text in made)
    assert sum(text in texts for text in made) < 0.3 * len(made)
    assert varied(["", "so"], copies=5, seed=0)  # a text without a word is no error


def test_what_is_behind_a_texts_end_counts_in_no_classifier_behind_blocks() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=6, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    network = BertForSequenceClassification(config).eval()
    exits = Exits(config)
    assert [*exits.blocks] == [0, 2, 4]
    ids, mask, labels = torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.tensor([2])
    losses, behind = list[float](), list[torch.Tensor]()
    for filler in (0, 19):
        ids[0, 2] = filler
        found = network(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        losses.append(float(exits.loss(found, mask, labels).detach()))
        behind.append(torch.stack(found.hidden_states)[:, 0, 2])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert not torch.isclose(behind[0], behind[1]).all(dim=1).any()  # it is something else wherever it is read


@pytest.mark.slow
def test_a_network_that_learns_with_classifiers_behind_its_blocks_answers_as_well(base: Path, tmp_path: Path) -> None:
    folder = finetune(base, TEXTS, tmp_path / "joint", epochs=300, joint=True)
    right = [said == label for said, (_, label) in zip(answers(folder, TEXTS), TEXTS, strict=True)]
    assert sum(right) > 0.6 * len(right)
    alone = finetune(base, TEXTS, tmp_path / "alone", epochs=300)
    one, other = (load_file(each / "model.safetensors") for each in (folder, alone))
    assert one.keys() == other.keys()  # classifiers behind blocks are not part of it
    assert any(not torch.equal(one[name], other[name]) for name in one)
    weights = (folder / "model.safetensors").read_bytes()
    assert finetune(base, TEXTS, folder, epochs=300, joint=True) == folder
    assert (folder / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_the_command_writes_tables_that_a_build_takes(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--base", str(base), "--out", str(tmp_path), "--threads", "1", "--epochs", "1"])
    assert "right on test: " in capsys.readouterr().out
    made = read()
    labels = read_folder(str(tmp_path / "intents")).about.labels
    labeled = read_labeled(tmp_path / "intents.csv", Media.TEXT, labels)
    assert labeled.splits == ["train"] * 3 * 480 + ["validation"] * 240
    of_others = varied([text for text, _ in made["train"]], copies=2, seed=0)
    assert labeled.raw["text"][:960] == of_others
    said = answers(tmp_path / "intents", [(text, "") for text in of_others])
    assert [labels[number] for number in labeled.labels[:1440]] == [*said, *(label for _, label in made["train"])]
    with (tmp_path / "unseen.csv").open(encoding="utf-8", newline="") as file:
        unseen = {row["text"] for row in csv.DictReader(file)}
    assert unseen | {*labeled.raw["text"][1440:]} == {text for part in ("val", "test") for text, _ in made[part]}
    assert len(unseen) == 240
