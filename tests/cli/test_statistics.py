"""`latebind models --url`: a running server's figures as it tells them itself."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latebind.cli.console import console
from latebind.cli.main import app
from latebind.cli.statistics import read_statistics, row
from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError
from tests.server.conftest import opened, scalar

CALL = {"inputs": [scalar(1.0)]}


def test_the_table_and_the_route_tell_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 200)  # else names are cut to fit
    file = tmp_path / "told.json"
    with opened() as site:
        for _ in range(3):
            site.post("/v2/models/scalar/infer", CALL)
        url = f"http://127.0.0.1:{site.port}"
        result = CliRunner().invoke(app, ["models", "--url", url, "--json", str(file)])
        told = site.get("/v2/models/stats").json()
    assert result.exit_code == 0
    assert [name for name in ("scalar", "double") if name in result.output] == ["scalar", "double"]
    assert [model["inference_stats"] for model in json.loads(file.read_text())["model_stats"]] == [
        model["inference_stats"] for model in told["model_stats"]
    ]


def test_a_row_has_means_of_requests_that_were_answered() -> None:
    with opened() as site:
        for _ in range(4):
            site.post("/v2/models/scalar/infer", CALL)
        found = {model["name"]: row(model) for model in read_statistics(f"http://127.0.0.1:{site.port}")}
    scalar_row, other = found["scalar"], found["double"]
    assert (scalar_row["answered"], scalar_row["mean ms"], scalar_row["requests a batch"]) == (4, "1.000", "1.00")
    assert (other["answered"], other["mean ms"], other["last"]) == (0, "", "never")


def test_a_server_that_wants_a_token_is_given_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-s3cret-s3cret\n")
    file.chmod(0o600)
    with opened(DoorConfig(port=0, token_file=str(file))) as site:
        url = f"http://127.0.0.1:{site.port}"
        assert read_statistics(url, file)
        with pytest.raises(ConfigError, match="answers 401"):
            read_statistics(url)
