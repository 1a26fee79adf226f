"""`latebind models` beside a folder in which not all is whole."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latebind.cli.console import console
from latebind.cli.main import app
from tests.versions import QUERY, add_version, spoil


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that is whole, one that is not, and a query that needs the latter."""
    add_version(tmp_path / "models", "other", 1, 2.0)
    spoil(add_version(tmp_path / "models", "scale", 1, 2.0))
    (tmp_path / "models" / "both.query.toml").write_text(QUERY)
    return tmp_path / "models"


def test_what_is_whole_is_listed_and_what_is_not_is_told_with_what_needs_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", 300)  # else words are cut to fit
    file = tmp_path / "told.json"
    result = CliRunner().invoke(app, ["models", str(folder), "--json", str(file)])
    assert result.exit_code == 2
    told = json.loads(file.read_text())
    assert [model["model"] for model in told["models"]] == ["other"]
    assert "scale/1/weights.safetensors differs from the manifest" in told["wrong"]["scale"]
    assert told["queries"][0]["wrong"].endswith("both.query.toml needs scale, which is unusable")
    assert "differs from the manifest" in result.output


def test_the_weights_of_all_models_are_added_up_and_their_machine_is_told_once(tmp_path: Path) -> None:
    for name in ("scale", "other"):
        add_version(tmp_path, name, 1, 2.0)
    result = CliRunner().invoke(app, ["models", str(tmp_path)])
    assert result.exit_code == 0
    assert "weights of all 2: 0 MB" in result.output
    assert result.output.count("profiled on") == 1


def test_a_server_of_such_a_folder_says_how_the_others_are_served(folder: Path) -> None:
    result = CliRunner().invoke(app, ["serve", str(folder), "--port", "0"])
    assert result.exit_code == 2
    assert result.output.strip().endswith("build it again. To serve only the others: --model other")
