"""Committed results: what the site and README show is what the files say, and their commands are still there."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.site.reference import benchmarks
from research import publish
from research.__main__ import app
from research.publish import CONDITIONS, RESULTS, command_of, main, read

FILES = sorted(RESULTS.glob("*.json"))
README = RESULTS.parents[1] / "README.md"


def tables(file: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, part in read(file).items():
        if name != CONDITIONS:
            yield from part["tables"].items()


def section(page: str, file: Path) -> str:
    return page.partition(f"\n## {file.stem}\n")[2].partition("\n## ")[0]


def test_there_are_some() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_page_has_every_figure_of_a_file_in_its_table(file: Path) -> None:
    shown = section(benchmarks(), file)
    for title, rows in tables(file):
        _, heading, rest = shown.partition(f"### {title} {{")
        assert heading
        head, _, *lines = [line[2:-2].split(" | ") for line in rest.splitlines() if line.startswith("|")]
        for row, cells in zip(rows, lines, strict=False):
            there = dict(zip(head, cells, strict=True))
            assert {key: str(value) for key, value in row.items() if value != ""} == {
                key: value for key, value in there.items() if value.strip()
            }
    assert read(file)[CONDITIONS]["machine"] in shown


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_command_of_a_file_is_understood_and_asks_for_what_the_file_was_made_with(file: Path) -> None:
    result = read(file)
    name, *words = command_of(result)
    group: Any = typer.main.get_command(app)
    command = group.get_command(None, name).load()
    asked = command.make_context(name, list(words)).params
    for key, value in result[CONDITIONS].items():
        if key in asked and key != "command":
            assert json.loads(json.dumps(asked[key], default=str)) == value, key
    assert list(asked["part"]) == [key for key in result if key != CONDITIONS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_nothing_raw_and_nothing_of_a_machine(file: Path) -> None:
    text = file.read_text()
    assert all(set(part) == {"tables"} for name, part in read(file).items() if name != CONDITIONS)
    assert not re.search(r'"/\w+/', text)
    assert len(text) < 100_000


NAMED = re.compile(r"`research/results/(\w+\.json)`, `([^`]+)`")  # a committed file, and a column of its tables


def test_figures_of_the_readme_that_name_a_file_are_what_the_file_says() -> None:
    lines = [line for line in README.read_text().splitlines() if "research/results/" in line]
    assert lines
    for line in lines:
        _, subject, said, _ = line.split("|")
        (found,) = NAMED.findall(subject)
        file, column = found
        rows = [row for _, rows in tables(RESULTS / file) for row in rows if row.get(column)]
        figures = [abs(float(re.match(r"[-+\d.]+", row[column]).group())) for row in rows]  # type: ignore[union-attr]
        assert re.findall(r"\d+", said) == [f"{figure:.0f}" for figure in figures]


def test_a_result_is_taken_without_what_is_raw_and_repeated_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "RESULTS", tmp_path / "results")
    told = {"command": "residency", "policies": ["late"], "seeds": 10, "machine": "m", "pairing": []}
    file = tmp_path / "some.json"
    file.write_text(json.dumps({"settings": told, "table": {"tables": {"t": [{"a": "1"}]}, "raw": [0.1] * 99}}))
    main([str(file)])
    taken = tmp_path / "results" / "some.json"
    assert read(taken) == {"settings": told, "table": {"tables": {"t": [{"a": "1"}]}}}

    def run(command: list[str], *, check: bool) -> None:
        assert check
        assert command[1:-2] == [
            "-m", "research", "residency", "--part", "table", "--policy", "late",
        ]  # fmt: skip
        Path(command[-1]).write_text(json.dumps({"settings": told, "table": {"tables": {"t": [{"a": "2"}]}, "raw": 0}}))

    monkeypatch.setattr(subprocess, "run", run)
    main([])
    assert read(taken)["table"] == {"tables": {"t": [{"a": "2"}]}}
    file.write_text(json.dumps({"settings": {**told, "trace": "/home/somebody/trace.npz"}}))
    with pytest.raises(ValueError, match="of this machine"):
        main([str(file)])
