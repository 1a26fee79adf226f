"""`latebind serve` as a process: what signals do, and what is left when it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from shutil import copytree
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
import torch
from rich.console import Console
from torch import nn

from latebind.bench.client import Caller, encode, written
from latebind.bench.server import launched
from latebind.child import READY
from latebind.cli.serve import say_what, say_where
from latebind.cli.settings import check_machine, known_keys
from latebind.domain.config import EngineConfig, FrontendConfig, ServeConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, StepInputs, StepSpec, TensorSpec
from latebind.engine.client import NAME
from latebind.repository.directory import MANIFEST, MODEL, ModelDirectory
from latebind.server.gateway import IndexEntry
from tests.building import build_stages, on_one_core
from tests.versions import QUERY, WIDTH, add_version, built, spoil

pytestmark = pytest.mark.usefixtures("nobody_lends")
PATIENCE = 60.0


def factor(url: str) -> float:
    caller = Caller(url, "scale")
    (rows,) = caller(encode({"x": torch.ones(1, WIDTH).numpy()}, timeout=30.0)).outputs.values()
    caller.close()
    return float(rows[0, 0])


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/v2/health/ready", timeout=PATIENCE) as reply:
            return bool(reply.status == 200)
    except OSError:  # refused, or not ready
        return False


def test_a_machine_is_asked_for_no_core_that_it_has_not(tmp_path: Path) -> None:
    there = os.sched_getaffinity(0)
    with on_one_core():  # a server may be given another core than it was started on
        check_machine(EngineConfig(cores=(max(there),)), tmp_path / "events.jsonl")
        assert len(os.sched_getaffinity(0)) == 1
    for core in (9999, 10**20):
        with pytest.raises(ConfigError, match=rf"names \[{core}\], where this process may not run: it may run on \["):
            check_machine(EngineConfig(cores=(core,)), None)
    with pytest.raises(ConfigError, match="does not exist: create it first"):
        check_machine(EngineConfig(), tmp_path / "nowhere" / "events.jsonl")


def test_an_unknown_key_is_answered_by_those_that_there_are() -> None:
    assert "port" in known_keys("Object contains unknown field `prot` - at `$.server`")
    assert known_keys("Object contains unknown field `serve`").startswith("; the keys are server, ")
    assert known_keys("Expected `int`, got `str` - at `$.server.port`") == ""


def test_who_watches_a_terminal_gets_a_table_and_others_get_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor, step = TensorSpec("x", "float32", (4,)), StepSpec("gate", ("scale",), (), (StepInputs(("x",)),))
    specs = [
        ModelSpec("scale", "3", (tensor,), (tensor,), 2, 8, lookups=(0, 1)),
        ModelSpec("asking", "1", (tensor,), (tensor,), 1, 8, steps=(step,)),
    ]
    entries = [IndexEntry(name="torn", version="", state="UNAVAILABLE", reason="weights differ")]
    with caplog.at_level("INFO"):
        say_what(specs, entries, as_table=False)
    assert caplog.messages == ["serving scale version 3", "serving query asking: gate"]
    written = StringIO()
    monkeypatch.setattr("latebind.cli.serve.errors", Console(file=written, width=100))
    say_what(specs, entries, as_table=True)
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in written.getvalue().splitlines() if "│" in line
    ]
    assert lines == [
        ["scale", "3", "x", "2", "0 1", ""],
        ["asking", "query", "x", "1", "", ""],
        ["torn", "", "", "", "", "weights differ"],
    ]


@pytest.mark.slow
def test_on_hang_up_the_server_looks_for_new_versions_and_serves_them(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    add_version(tmp_path / "models", "scale", 1, 2.0)
    later = add_version(tmp_path / "later", "scale", 2, 3.0)
    with launched(tmp_path / "models") as server:
        assert factor(server.url) == 2.0
        copytree(later, tmp_path / "models" / "scale" / "2")
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while factor(server.url) == 2.0:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert factor(server.url) == 3.0


def states(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: state for name, (state, _) in found.items()}


def index(url: str) -> dict[str, tuple[str, str]]:
    """Return state and reason of everything in the repository's index."""
    with urlopen(Request(f"{url}/v2/repository/index", b"{}"), timeout=PATIENCE) as reply:
        return {entry["name"]: (entry["state"], entry["reason"]) for entry in json.load(reply)}


@pytest.mark.slow
def test_one_that_keeps_going_serves_the_good_models_says_what_is_wrong_with_others_and_takes_them_once_mended(
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    models, log = tmp_path / "models", tmp_path / "log"
    add_version(models, "scale", 1, 2.0)
    whole = {file.name: file.read_bytes() for file in add_version(models, "torn", 1, 3.0).iterdir()}
    spoil(models / "torn" / "1")
    ModelDirectory.create(models / "empty" / "1", {MODEL: b"{}"})
    files = {name: data for name, data in built("hollow", 1, 4.0).items() if name != MANIFEST}
    ModelDirectory.create(models / "hollow" / "1", files | {"graph.json": b"{}"})  # what only an engine finds
    (models / "both.query.toml").write_text(QUERY.replace("scale", "torn"))
    (models / "deep.query.toml").write_text(QUERY.replace("scale", "hollow"))
    (models / "one.query.toml").write_text(QUERY)
    (models / "wrong.query.toml").write_text(QUERY.replace("first.output", "first.outputs"))
    with launched(models, "--keep-going", log=log) as server:
        assert factor(server.url) == 2.0
        assert is_ready(server.url)
        found = index(server.url)
        assert states(found) == {
            "both": "UNAVAILABLE",
            "deep": "UNAVAILABLE",
            "empty": "UNAVAILABLE",
            "hollow": "UNAVAILABLE",
            "one": "READY",
            "scale": "READY",
            "torn": "UNAVAILABLE",
            "wrong": "UNAVAILABLE",
        }
        assert found["wrong"][1].startswith("wrong.query.toml:5: outputs.y: ")
        assert "differs from the manifest" in found["torn"][1]
        assert str(tmp_path) not in str(found)
        assert found["deep"][1] == "it needs hollow, which cannot be served"
        assert "6 of the models and queries are not served: both, deep, empty, hollow, torn, wrong" in log.read_text()
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{server.url}/v2/models/torn", timeout=PATIENCE)
        assert refused.value.code == 503
        assert "differs from the manifest" in refused.value.read().decode()
        for name, data in whole.items():
            (models / "torn" / "1" / name).write_bytes(data)
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while index(server.url)["both"][0] != "READY":
            assert time.monotonic() < until
            time.sleep(0.02)
        assert index(server.url)["torn"] == ("READY", "")


class Layers(nn.Module):
    """As many square layers as there are, of this width: weights of `4 * width ** 2` bytes each."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(B, width) float32` to the same shape."""
        return self.layers(x)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_one_that_keeps_going_leaves_out_only_the_models_that_are_too_large_for_its_memory(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    models = tmp_path / "models"
    add_version(models, "scale", 1, 2.0)
    for name, count, width in (("large", 1, 2048), ("pair", 2, 1280)):  # 16.8 MB in one stage, twice 6.6 MB
        rows = {"x": torch.ones(1, width)}
        build_stages(Layers(count, width).eval(), rows, models / name / "1", name=name, max_batch=2)
    (models / "both.query.toml").write_text(QUERY.replace("scale", "large"))
    with launched(models, "--keep-going", "--memory", "12MB", "--slots", "4") as server:
        assert factor(server.url) == 2.0
        found = index(server.url)
        assert states(found) == {
            "both": "UNAVAILABLE",
            "large": "UNAVAILABLE",
            "pair": "UNAVAILABLE",
            "scale": "READY",
        }
        assert "a piece of large has 16.8 MB of weights and models may take" in found["large"][1]
        assert found["both"][1] == "it needs large, which cannot be served"
        assert re.match("model 'pair' needs .* bytes for two stages in turn", found["pair"][1])


def test_nothing_that_can_be_served_is_told_also_where_the_server_would_keep_going(tmp_path: Path) -> None:
    spoil(add_version(tmp_path, "torn", 1, 3.0))
    for wanted, told in (("torn", "torn: .*differs from the manifest"), ("turn", "there is no model 'turn'")):
        words = [sys.executable, "-m", "latebind", "serve", str(tmp_path), "--keep-going", "--port", "0"]
        done = subprocess.run(
            [*words, "--model", wanted], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 2
        assert re.search(told, " ".join(done.stderr.split())), done.stderr


@pytest.mark.slow
def test_on_hang_up_the_server_reads_its_tokens_again(tmp_path: Path) -> None:
    add_version(tmp_path / "models", "scale", 1, 2.0)
    file, old, new = tmp_path / "token", "old-0123456789abcdef", "new-0123456789abcdef"
    file.write_text(old)

    def status(token: str) -> int:
        asked = Request(f"{server.url}/v2/models/scale", headers={"Authorization": f"Bearer {token}"})
        try:
            with urlopen(asked, timeout=PATIENCE) as reply:
                return int(reply.status)
        except HTTPError as error:
            return error.code

    with launched(tmp_path / "models", "--token-file", str(file)) as server:
        assert (status(old), status(new)) == (200, 401)
        file.write_text(new)
        server.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + PATIENCE
        while status(new) != 200:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert status(old) == 401


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once_with_all_its_processes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    add_version(tmp_path, "scale", 1, 2.0)
    with launched(tmp_path) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert children
        (engine,) = [child for child in children if child.name() == NAME]
        os.kill(engine.pid, signal.SIGSTOP)  # a call that would hold the server up
        line = Caller(server.url)
        line.send(written(line.host, "scale", encode({"x": torch.ones(1, WIDTH).numpy()}, timeout=30.0)))
        assert is_ready(server.url)  # what came on another connection before was read before
        server.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while is_ready(server.url):
            assert time.monotonic() < until
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 1
        line.close()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive


@pytest.mark.parametrize(
    ("host", "dashboard", "url", "said"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:8000", ["dashboard: http://127.0.0.1:8000/dashboard/"]),
        ("0.0.0.0", False, "http://0.0.0.0:8000", []),
        ("::", False, "http://[::]:8000", ["listening at [::] over IPv4 and IPv6"]),
        ("::1", False, "http://[::1]:8000", ["listening at [::1] over IPv6"]),
    ],
)
def test_a_server_says_where_it_is_what_it_shows_and_which_versions_of_ip_it_serves(
    host: str,
    dashboard: bool,
    url: str,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = ServeConfig(server=FrontendConfig(host=host))
    assert settings.server.shows_dashboard is dashboard or ":" in host
    with caplog.at_level("INFO"):
        say_where(settings, 8000, None, dashboard=dashboard)
    assert caplog.messages == said
    assert capsys.readouterr().out == f"{READY}{url}\n"
