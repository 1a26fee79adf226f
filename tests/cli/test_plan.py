"""`latebind plan` as a user types it."""

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan" / "shop.toml"
SMALL = """
[[machines]]
name = "small"
memory = "1GB"
[[machines]]
name = "dear"
memory = "1GB"
price = 9.0
[[models]]
name = "some"
count = 4
size = "100MB"
seconds = 0.01
deadline = 0.1
[traffic]
rate = 60.0
duration = 10.0
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def plan(*words: str | Path) -> tuple[int, str]:
    return run("plan", *map(str, words), "--processes", "1")


QUICK = ("--seeds", "1", "--memory", "100", "--way", "late")


def test_the_cheapest_kind_that_is_enough_is_the_plan_and_all_is_written(small: Path, tmp_path: Path) -> None:
    page, file = tmp_path / "plan.html", tmp_path / "plan.json"
    code, output = plan(small, *QUICK, "--target", "95", "--page", page, "--json", file)
    assert code == 0, output
    found = json.loads(file.read_text())
    best = found["plan"]["best"]
    assert best["offer"]["kind"]["name"] == "small"
    assert len(found["plan"]["changes"]) == 6
    assert min(figures["in_time"] for figures in best["figures"]) >= 0.95
    assert " ".join(found["answer"].split()) in " ".join(output.split())
    assert "one machine lost" in output
    text = page.read_text()
    assert "plotly" in text
    assert "no waiting for models" in text


def test_the_example_has_a_plan(tmp_path: Path) -> None:
    short = tmp_path / "shop.toml"
    short.write_text(
        EXAMPLE.read_text().replace("duration = 120.0", "duration = 20.0").replace("rate = 200.0", "rate = 20.0")
    )
    code, output = plan(short, *QUICK, "--target", "90", "--warm", "50")
    assert code == 0, output
    assert "small" in output
    assert "large" in output


def test_where_nothing_is_enough_that_is_said_and_the_exit_code_is_1(small: Path) -> None:
    small.write_text(SMALL.replace("deadline = 0.1", "deadline = 0.005"))
    code, output = plan(small, *QUICK, "--most", "2")
    assert code == 1
    assert "No offer is enough" in output
    assert "--target" in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "0"), "--target 0 is out of range"),
        (("--memory", "120"), "--memory 120 is out of range"),
        (("--warm", "100"), "--warm 100"),
        (("--way", "fifo"), "'fifo': use one of"),
        (("--memory", "5"), "give a kind of machine with more memory"),
        (("gone.toml",), "give a TOML file of a workload"),
    ],
)
def test_options_that_make_no_sense_are_told_with_what_to_do(small: Path, words: tuple[str, ...], said: str) -> None:
    code, output = plan(*([small] if words[0] != "gone.toml" else []), *words)
    assert code == 2
    assert said in output.replace("\n", " ")


def test_a_plan_says_how_long_rows_are(small: Path) -> None:
    small.write_text(SMALL.replace('name = "some"\n', 'name = "some"\nlengths = "8,8,64"\n'))
    code, output = plan(small, *QUICK, "--target", "90")
    assert code == 0, output
    assert "of 4 models, lengths 8 to 64, half up to 8" in " ".join(output.split())
