"""Texts of their own lengths, live: where one client's time goes, and policies in one server; on a tiny encoder."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.lengths.peers import Texts

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ("how", "are", "you", "fine", "thanks")
POLICIES = ("late", "fixed(8)", "budget(128)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, its tokenizer, and texts."""
    made = tmp_path_factory.mktemp("encoder")
    words = {"[PAD]": 0, "[UNK]": 1, **{word: place for place, word in enumerate(WORDS, 2)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[UNK] $A [UNK]", special_tokens=[("[UNK]", 1)])
    tokenizer.save(str(made / "tokenizer.json"))
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(made)
    lines = [f"greeting\t{' '.join(WORDS[:count])}" for count in (1, 2, 3, 5)]
    (made / "texts.tsv").write_text("\n".join(lines))
    return made


def test_texts_are_strung_together_to_lengths(folder: Path) -> None:
    lengths = (3, 5, 40, 7)
    found = Texts.read(folder / "texts.tsv", folder, most=10, longest=20, lengths=lengths)
    assert [tokens.shape[1] for tokens in found.tokens] == [3, 5, 20, 7]
    assert found.texts[0] == "how"
    assert found.texts[1] == "how are how"
    assert [len(text.split()) for text in found.texts] == [length - 2 for length in lengths]


@pytest.fixture(scope="module")
def given(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that both commands take; whoever comes first builds the model."""
    models = tmp_path_factory.mktemp("models")
    options = {"weights": folder, "texts": folder / "texts.tsv", "models": models, "backend": "eager", "longest": 32}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def test_the_parts_of_a_call_follow_one_another(given: list[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["lengths-one", *given, "--rounds", "2", "--calls", "4", "--json", str(file)])
    assert done.exit_code == 0, done.output
    (rows,) = json.loads(file.read_text())["parts"]["tables"].values()
    parts = [row["part"] for row in rows]
    assert parts[1:5] == ["uncut", "stages", "stages after a pause", "worker"]
    last = "engine of 2"
    assert parts[-4:] == [last, f"{last}, of it in the queue", f"{last}, of it with the worker", "server"]
    whole = float(rows[-4]["ms"])
    assert all(0.0 <= float(row["ms"]) < whole for row in rows[-3:-1]), "the queue and the worker are within the engine"


def test_policies_are_asked_at_loads_of_what_the_profile_says(given: list[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    wanted = [word for one in POLICIES for word in ("--policy", one)]
    loads = ["--load", "0.01", "--load", "0.02", "--rounds", "2", "--seconds", "0.3"]
    command = ["lengths-live", "--part", "policies", *given, *wanted, *loads, "--json", str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())["policies"]["raw"]
    assert found["lengths"] == [3, 4, 5, 7]
    assert [(one["load"], one["side"]) for one in found["loads"]] == [
        (load, side) for load in (0.01, 0.02) for side in POLICIES
    ]
    assert all(len(one["in_time"]) == len(one["mean"]) == 2 for one in found["loads"])
    assert [(one["load"], one["side"]) for one in found["simulated"]] == [
        (one["load"], one["side"]) for one in found["loads"]
    ]
    assert all(0.0 <= share <= 1.0 for one in found["simulated"] for share in one["in_time"])
    assert min(found["padding"].values()) >= 1.0
    assert all(first["rate"] <= second["rate"] for first, second in pairwise(found["loads"]))


def test_what_is_asked_wrongly_is_said(given: list[str]) -> None:
    asked = CliRunner().invoke(app, ["lengths-live", "--part", "policies", *given, "--policy", "none"])
    assert asked.exit_code == 2
    assert "there is no policy 'none'" in asked.output
    assert CliRunner().invoke(app, ["lengths-live", "--part", "peers", *given]).exit_code == 2


def test_texts_are_asked_one_by_one_and_in_lists(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = [
        "--weights",
        str(folder),
        "--texts",
        str(folder / "texts.tsv"),
        "--side",
        "latebind",
        "--backend",
        "eager",
    ]
    command = ["texts", *options, "--rounds", "1", "--seconds", "0.3", "--json", str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (rows,) = json.loads(file.read_text())["texts"]["tables"].values()
    by_side = {row["side"]: row for row in rows}
    assert set(by_side) == {"latebind", "fastembed in a loop", "the backend in a loop", "the tokenizer in a loop"}
    ours, alone = by_side["latebind"], by_side["the backend in a loop"]
    assert float(ours["one client, ms"]) > float(by_side["the tokenizer in a loop"]["one client, ms"])
    assert float(ours["256 texts in a call, ms"]) > 0
    assert alone["latebind better, one client"]
