"""Every evaluation explains itself and runs on tiny settings, and a mistake gets one clear line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.cli.console import console, errors
from research.__main__ import PARTS, app
from tests.digits import Built

TINY: dict[str, tuple[str, ...]] = {  # words of a command, then what its tables must show; both without blanks
    "batching --part loads --network transformer --load 200 --seeds 2 --requests 80 --processes 1": (
        "p99, leaving early",
        "geometric mean",
    ),
    "batching --part bound --load 0.5 --seeds 1 --requests 60 --processes 1": (
        "shortest first, all known",
        "10,000 pairs drawn like those of news",
    ),
    "elastic --part throughput --network resnet152 --seeds 1 --seconds 0.5 --processes 1": (
        "more with elastic batches",
        "static",
    ),
    "joint {digits} --model digits --simulated --load 1 --deadline 3 --rounds 2 --seconds 0.05 --side GATI": (
        "of the best of each kind",
        "late over it",
    ),
    "joint {digits} --model digits --simulated --steep --part refill --rounds 2 --seconds 0.05": ("compaction alone",),
    "live {models} --model backwards --simulated --load 0.5 --rounds 1 --seconds 0.05": ("mean of the baselines",),
    "elastic-live {models} --model chain --simulated --load 0.5 --rounds 1 --seconds 0.05": ("in time over no wait",),
    "residency --part table --part crowd --seeds 1 --processes 1 --pairing quantile --requests 40"
    " --share 0.6 --policy iam --policy late": ("against lru", "over lru"),
    "queries --requests 40 --load 0.5 --deadline-ms 80 --processes 1": ("points over static", "at load 0.5"),
    "shadow {models} --model chain --rounds 1 --seconds 0.3": ("beside a shadow / alone", "passed_over"),
    "scheduler --policy lazy+ --policy waiting --events 200": ("boundary us", "decision of it us"),
}


def run(words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="session")
def places(built: Built, models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What commands are given: folders of models and rows for them."""
    rows = tmp_path_factory.mktemp("rows") / "images.npz"
    np.savez(rows, image=np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32))
    return {"digits": built.directory.path.parents[1], "models": models, "images": rows}


def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tables in one piece: a console keeps the width that it found when it was first imported."""
    for one in (console, errors):
        monkeypatch.setattr(one, "_width", 400)
        monkeypatch.setattr(one, "_height", 100)


@pytest.mark.parametrize("command", PARTS)
def test_every_evaluation_explains_itself(command: str) -> None:
    code, output = run(f"{command} --help")
    assert code == 0
    assert "Usage" in output


@pytest.mark.parametrize("words", TINY)
def test_every_evaluation_tells_settings_machine_and_tables_and_writes_them(
    words: str, places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide(monkeypatch)
    file, page = tmp_path / "figures.json", tmp_path / "page.html"
    code, output = run(f"{words.format_map(places)} --json {file} --page {page}")
    assert code == 0, output
    told = " ".join(output.split())
    assert all(word in told for word in ("machine", "cores, torch", *TINY[words])), output
    figures = json.loads(file.read_text())
    command, *given = words.split()
    assert figures.pop("settings")["command"] == command
    wanted = [given[place + 1] for place, word in enumerate(given) if word == "--part"]
    assert list(figures) == wanted or not wanted
    assert all(any(part["tables"].values()) for part in figures.values())
    text = page.read_text()
    assert all(
        str(next(iter(row.values()))) in text for part in figures.values() for t in part["tables"].values() for row in t
    )
    assert 'src="http' not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("shadow nowhere --model m", "nowhere is not a directory"),
        ("before . nowhere", "nowhere is not a directory"),
        ("batching --network alexnet", "there is no network 'alexnet'"),
        ("batching --part everything", "there is no part 'everything': take some of loads, capacity"),
        ("elastic --network alexnet", "there is no network 'alexnet'"),
        (
            "elastic-live {models} --model chain --data {images} --engine-cores a",
            "give whole numbers with commas between",
        ),
        ("joint {digits} --model digits", "give --data"),
        ("joint {models} --model backwards --simulated", "--part refill"),
        ("residency --policy fifo", "there is no policy 'fifo'"),
        ("residency --share 0", "--share 0 is no share"),
        ("residency --trace nowhere.csv", "nowhere.csv is no trace"),
        ("caches nowhere --model a --data b.npz --fidelity 97", "give the share of equal answers"),
    ],
)
def test_a_mistake_gets_one_clear_line_and_exit_code_2(
    words: str, message: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide(monkeypatch)
    code, output = run(words.format_map(places))
    assert code == 2
    assert message in output


def test_a_page_that_cannot_be_drawn_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert run("elastic --page page.html") == (2, "error: plotly is not installed: pip install 'latebind[report]'\n")
