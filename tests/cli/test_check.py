"""`latebind check`: what would be served, and each thing that would not be."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
from typer.testing import CliRunner

from latebind.cli import check
from latebind.cli.main import app
from latebind.domain.config import EngineConfig, ResidencyConfig, ServeConfig
from latebind.engine.order import with_queries
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection, Serving
from tests.versions import QUERY, add_version, spoil


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, one of them in two versions, and a query over that."""
    root = tmp_path / "models"
    add_version(root, "other", 1, 3.0)
    for version in (1, 2):
        add_version(root, "scale", version, float(version))
    (root / "both.query.toml").write_text(QUERY)
    return root


def checked(folder: Path, *words: str, code: int) -> dict[str, list[dict[str, Any]]]:
    """Run the command, which is to end with this code, and return its tables."""
    file = folder.parent / "told.json"
    result = CliRunner().invoke(app, ["check", str(folder), *words, "--json", str(file)])
    assert result.exit_code == code, result.output
    told: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
    return told


def states(rows: list[dict[str, Any]], *keys: str) -> list[tuple[str, ...]]:
    return [tuple(row[key] for key in (*keys, "state")) for row in rows]


def test_of_a_whole_folder_the_newest_versions_and_the_queries_are_told(folder: Path) -> None:
    told = checked(folder, code=0)
    assert states(told["models"], "model", "version") == [("other", "1", "fine"), ("scale", "2", "fine")]
    assert states(told["queries"], "query", "steps") == [("both", "first", "fine")]
    assert states(told["server"], "part") == [("memory", "fine")]


def test_a_faulty_model_and_what_needs_it_are_told_and_the_rest_is_fine(folder: Path) -> None:
    spoil(folder / "scale" / "2")
    told = checked(folder, code=1)
    assert states(told["models"], "model") == [("other", "fine"), ("scale", "faulty")]
    (query,) = told["queries"]
    assert query["state"] == "faulty"
    assert (
        query["note"]
        == told["models"][1]["note"]
        == (
            "scale/2/weights.safetensors differs from the manifest: it was changed or only partly copied; "
            "build it again"
        )
    )


def test_a_query_over_a_model_that_is_not_there_or_that_names_what_it_has_not_is_faulty(folder: Path) -> None:
    (folder / "gone.query.toml").write_text(QUERY.replace('["scale"]', '["scael"]'))
    (folder / "wrong.query.toml").write_text(QUERY.replace("first.output", "first.outputs"))
    told = checked(folder, code=1)
    assert states(told["queries"], "query") == [("both", "fine"), ("gone", "faulty"), ("wrong", "faulty")]
    assert told["queries"][1]["note"] == "there is no model 'scael' in the repository: did you mean 'scale'?"
    assert told["queries"][2]["note"].startswith("wrong.query.toml:5: outputs.y: ")


def test_versions_of_a_split_are_told_with_their_shares_and_one_that_is_missing_is_faulty(folder: Path) -> None:
    told = checked(folder, "--split", "scale=1:90,2:10,3:shadow", code=1)
    rows = states(told["models"], "model", "version", "answers")
    assert rows[1:] == [
        ("scale", "1", "90 %", "fine"), ("scale", "2", "10 %", "fine"), ("scale", "3", "shadow", "faulty"),
    ]  # fmt: skip
    assert told["models"][-1]["note"] == "model 'scale' has no version '3' in the repository: it has 1, 2"


def test_a_split_and_a_name_of_what_there_is_not_are_faulty(folder: Path) -> None:
    told = checked(folder, "--split", "scael=1:90,2:10", code=1)
    assert "did you mean 'scale'?" in {row["model"]: row["note"] for row in told["models"]}["scael"]
    told = checked(folder, "--model", "scael", "--model", "other", code=1)
    assert states(told["models"], "model") == [("other", "fine"), ("scael", "faulty")]


def test_what_a_model_or_an_option_needs_that_is_not_installed_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "find_spec", lambda _: None)
    for module in ("latebind.server.rpc.messages", "latebind.server.telemetry"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    extras = ("grpc", "opentelemetry")  # with what of them other tests have imported
    for module in {*extras, *(name for name in sys.modules if name.partition(".")[0] in extras)}:
        monkeypatch.setitem(sys.modules, module, None)
    options = ("--backend", "openvino", "--grpc-port", "0", "--otlp", "http://127.0.0.1:4318")
    told = checked(folder, *options, code=1)
    assert {row["note"] for row in told["models"]} == {"openvino is not installed: pip install 'latebind[openvino]'"}
    grpc, telemetry, _ = told["server"]
    assert "pip install 'latebind[grpc]'" in grpc["note"]
    assert telemetry["note"] == "OpenTelemetry is not installed: pip install 'latebind[telemetry]'"


def test_what_does_not_fit_into_memory_is_told(folder: Path) -> None:
    told = checked(folder, "--memory", "1GiB", code=0)
    assert "of --memory are left for models and batches" in told["server"][0]["note"]
    assert "once all 256 of each are used" in told["server"][0]["note"]
    told = checked(folder, "--memory", "1KiB", code=1)
    assert told["server"][0]["note"].startswith("residency.budget is 1024 bytes, and slots for 3 models and queries")


@pytest.mark.parametrize(("stages", "state", "how"), [(2, "faulty", "a stage of it"), (3, "fine", "stage by stage")])
def test_a_model_is_faulty_where_a_stage_alone_is_too_large(folder: Path, stages: int, state: str, how: str) -> None:
    directory = ModelDirectory.open(folder / "other" / "1")
    spec = replace(read_model(directory).spec(), stages=stages)
    large = check.Whole(spec, directory, "eager", weights=5_000_000, note="")
    found = check.Found(Selection(folder), Serving(), {"other": large}, {})
    settings = ServeConfig(engine=EngineConfig(slots=1), residency=ResidencyConfig(budget=2_000_000))
    assert 0 < with_queries([large], [], 1).bytes < 100_000
    _, row = check._memory(found, [], settings)
    assert row["state"] == state
    assert how in str(row["note"])


def test_a_server_that_runs_at_the_port_is_no_fault(folder: Path) -> None:
    with create_server(("127.0.0.1", 0)) as running:
        checked(folder, "--port", str(running.getsockname()[1]), code=0)


def test_faults_of_options_end_with_2_and_nothing_there_too(folder: Path, tmp_path: Path) -> None:
    for place, *words in ((folder, "--policy", "none"), (folder, "--tls-cert", "gone.pem"), (tmp_path / "nowhere",)):
        result = CliRunner().invoke(app, ["check", str(place), *words])
        assert result.exit_code == 2, result.output
        assert result.output.startswith("error: ")


WITHOUT = """
import sys
from latebind.cli.main import app
if {gone}:
    sys.modules["torch"] = None
try:
    app(["check", {folder!r}])
except SystemExit as ended:
    print("ended", ended.code, "imported" if sys.modules.get("torch") else "not imported")
"""


@pytest.mark.parametrize("gone", [False, True])
def test_it_imports_no_torch_and_tells_what_needs_it(folder: Path, gone: bool) -> None:
    code = WITHOUT.format(gone=gone, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith(f"ended {int(gone)} not imported\n")
    assert ("runs on the backend eager, which is torch's" in " ".join(done.stdout.split())) is gone
