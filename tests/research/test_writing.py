"""Texts in and texts out, live: a network that writes, drawn small, behind a server of ours; answers are compared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from research.__main__ import app
from research.lengths.writers import WRITERS, Writer
from research.lengths.writing import Answers, unlike

pytest.importorskip("transformers")

TOKENS = 5
SMALL = Writer(
    "T5Config",
    400,
    {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    {"pad": 0, "eos": 1, "unk": 2, "decoder_start": 0},
    louder=4.0,
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(f"{who} {what} the {whom}." for who in "abc" for what in "de" for whom in "fgh"))
    return file


@pytest.mark.slow
def test_answers_of_a_server_are_those_that_transformers_generates_alone_and_beside_others(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WRITERS, "t5-small", SMALL)
    file, models = tmp_path / "found.json", tmp_path / "models"
    options = ["--models", str(models), "--backend", "eager", "--tokens", str(TOKENS), "--longest", "16"]
    asked = ["--part", "t5-small", "--side", "latebind", "--rounds", "1", "--seconds", "0.3", "--json", str(file)]
    done = CliRunner().invoke(app, ["writing", str(texts), *options, *asked])
    assert done.exit_code == 0, done.output
    answered, first = json.loads(file.read_text())["t5-small"]["tables"].values()
    assert [row["side"] for row in answered] == ["latebind", "transformers in a loop"]
    assert all(float(row["one client, ms"]) > 0 for row in answered)
    assert float(answered[0]["16 clients, a second"]) > 0
    assert float(first[0]["first token, ms"]) > 0
    assert (models / f"t5-small-{TOKENS}" / "folder" / "model.safetensors").exists()


def test_a_side_that_writes_other_tokens_is_named() -> None:
    same: Answers = {0: (3, 4), 1: (5, 6)}
    assert unlike({"transformers in a loop": [{0: (3, 4)}], "latebind": [same, same]}) == ([], 5)
    lines, agree = unlike({"transformers in a loop": [{0: (3, 4)}], "latebind": [{0: (3, 5), 1: (5, 6)}]})
    assert (len(lines), agree) == (1, 2)
    assert "latebind answers text 0 by (3, 5), and not by (3, 4)" in lines[0]


@pytest.mark.parametrize(("side", "says"), [("none", "there is no side 'none'"), ("ctranslate2", "give --side")])
def test_sides_that_cannot_be_compared_are_refused_before_anything_is_built(
    side: str, says: str, texts: Path, tmp_path: Path
) -> None:
    asked = ["--models", str(tmp_path / "models"), "--part", "t5-small", "--side", side]
    done = CliRunner().invoke(app, ["writing", str(texts), *asked])
    assert done.exit_code == 2
    assert says in done.output
    assert not (tmp_path / "models").exists()
