"""What commands say where nobody watches a terminal."""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from io import StringIO
from threading import Event

import pytest
import typer
from rich.console import Console
from rich.progress import Progress

from latebind.cli import console
from latebind.cli.console import in_words, progress, reporting, saying


def test_a_line_tells_what_is_done_how_much_since_when_and_for_how_long_yet() -> None:
    now = 0.0
    bars = Progress(get_time=lambda: now, disable=True)
    task = bars.add_task("building resnet: cutting", total=1.0)
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 0% after 0:00:00"
    now = 30.0
    bars.update(task, completed=0.25, stepped=now)
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 25% after 0:00:30, about 0:01:30 left"
    now = 50.0
    assert in_words(bars.tasks[0]) == "building resnet: cutting, 25% after 0:00:50, about 0:01:10 left"


@pytest.mark.parametrize("seconds", [61.0, 130.0, 600.0])
def test_nothing_is_said_of_what_is_left_while_a_step_takes_longer_than_all_before(seconds: float) -> None:
    now = 0.0
    bars = Progress(get_time=lambda: now, disable=True)
    task = bars.add_task("building resnet: trying the backend compile", total=1.0)
    now = 30.0
    bars.update(task, completed=0.2, stepped=now)
    now = seconds
    assert in_words(bars.tasks[0]).endswith(f"20% after {timedelta(seconds=seconds)}")


def test_what_is_told_of_a_step_counts_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def say(line: Callable[[], str], period: float) -> Iterator[None]:
        del period
        yield
        said.append(line())

    now = 0.0
    monkeypatch.setattr(console, "saying", say)
    monkeypatch.setattr(console, "Progress", partial(Progress, get_time=lambda: now, disable=True))
    with progress("building") as tell:
        now = 20.0
        tell("the first half", 0.5)
        now = 30.0
        tell("the first half, still", 0.5)
    assert said == ["building: the first half, still, 50% after 0:00:30, about 0:00:10 left"]


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


def printed(rows: int, width: int, monkeypatch: pytest.MonkeyPatch, row: Mapping[str, object] = ROW) -> str:
    narrow = Console(width=width, record=True, file=StringIO())
    monkeypatch.setattr(console, "console", narrow)
    console.show("models", [row] * rows)
    return narrow.export_text()


def test_a_table_that_would_cut_words_off_is_printed_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = printed(2, 80, monkeypatch), printed(2, 36, monkeypatch)
    assert len([line for line in wide.splitlines() if "resnet56-large" in line and "threads 1" in line]) == 2
    assert "…" not in narrow
    assert len([line for line in narrow.splitlines() if line.split()[1:4] == ["model", "│", "resnet56-large"]]) == 2


WIDE = {"model": "a-model-of-long-name-7", "version": 1, "backend": "openvino", "ms at batch 1": 2.26} | {
    "weights MB": 3.4,
    "fidelity": "at least 0.970",
    "accuracy": "0.9360 of 5000",
    "profiled on": "AMD EPYC, threads: 1",
}


@pytest.mark.parametrize(("width", "tables"), [(30, 7), (80, 2), (200, 1)])
def test_many_rows_become_tables_of_as_many_columns_as_fit(
    width: int, tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = printed(11, width, monkeypatch, WIDE)
    assert found.count("┏") == tables
    assert found.count(str(WIDE["model"])) == 11 * tables


def test_no_word_is_cut_off_in_a_table_that_just_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"model": "text10", "version": "1", "backend": "openvino", "ms at batch 1": "9.87", "exits behind": "none"}
    for width in range(50, 70):  # from where the longest words of all columns fit to where all fits in one line
        found = printed(11, width, monkeypatch, row)
        assert found.count("openvino") == 11
        assert max(map(len, found.splitlines())) <= width


def test_nor_where_the_first_column_of_numbers_has_a_long_name(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = (
        "answered again after s, median",
        "longest",
        "requests",
        "answered",
        "503",
        "without answer",
        "longest request",
    )
    row: dict[str, object] = dict(zip(keys, (0.0421, 0.0567, 39321, 39161, 160, 0, 0.2231), strict=True))
    text = printed(1, 80, monkeypatch, row)
    assert "…" not in text
    assert all(word in text for word in ("39321", "39161", "longest request"))


@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("width", [20, 80])
def test_a_column_of_which_no_row_has_anything_is_left_out(
    rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = printed(rows, width, monkeypatch, {"model": "resnet56", "accuracy": "", "backend": "eager"})
    assert "accuracy" not in found
    assert "eager" in found


@pytest.mark.parametrize("file", [None, "models/net/1"])
def test_a_full_disk_is_told_with_what_to_do_next(file: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reporting():
        raise OSError(errno.ENOSPC, "No space left on device", file)
    said = capsys.readouterr().err
    assert "free some space there, or name another folder, and run it again" in said
    assert "Errno" not in said
    assert (file or "") in said
