"""What commands say where nobody watches a terminal."""

from io import StringIO
from threading import Event

import pytest
from rich.console import Console
from rich.progress import Progress

from latebind.cli import console
from latebind.cli.console import in_words, progress, saying


def test_a_line_tells_what_is_done_how_much_since_when_and_for_how_long_yet() -> None:
    now = 0.0
    bars = Progress(get_time=lambda: now, disable=True)
    task = bars.add_task("building resnet: cutting", total=1.0)
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 0% after 0:00:00"
    now = 30.0
    bars.update(task, completed=0.25)
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 25% after 0:00:30, about 0:01:30 left"
    now = 60.0
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 25% after 0:01:00, about 0:03:00 left"


def test_lines_come_as_long_as_the_work_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    said, enough = 0, Event()

    def line() -> str:
        nonlocal said
        said += 1
        if said == 3:
            enough.set()
        return f"line {said}"

    with saying(line, 0.001):
        assert enough.wait(60.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["line 1", "line 2"]
    assert len(lines) == said


def test_work_that_is_short_says_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("building") as tell:
        tell("cutting", 0.5)
    assert capsys.readouterr() == ("", "")


ROW = {"model": "resnet56-large", "accuracy": 0.93, "profiled on": "AMD EPYC, threads 1"}


def printed(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    narrow = Console(width=width, record=True, file=StringIO())
    monkeypatch.setattr(console, "console", narrow)
    console.show("models", [ROW] * rows)
    return narrow.export_text()


def test_a_table_that_would_cut_words_off_is_printed_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = printed(2, 80, monkeypatch), printed(2, 36, monkeypatch)
    assert len([line for line in wide.splitlines() if "resnet56-large" in line and "threads 1" in line]) == 2
    assert "…" not in narrow
    assert len([line for line in narrow.splitlines() if line.split()[1:4] == ["model", "│", "resnet56-large"]]) == 2


def test_many_rows_stay_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(11, 36, monkeypatch).count("accur") == 1
