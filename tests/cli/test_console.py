"""What commands say: tables that cut no word off, progress where nobody watches a terminal, errors of the system."""

import errno
from collections.abc import Mapping
from io import StringIO

import pytest
import typer
from rich.console import Console

from latebind.cli import console
from latebind.cli.console import progress, reporting

ROW = {"model": "resnet56-large", "accuracy": 0.93, "profiled on": "AMD EPYC, threads 1", "exits after": ""}


def printed(width: int, monkeypatch: pytest.MonkeyPatch, row: Mapping[str, object] = ROW, rows: int = 2) -> str:
    narrow = Console(width=width, record=True, file=StringIO())
    monkeypatch.setattr(console, "console", narrow)
    console.show("models", [row] * rows)
    return narrow.export_text()


def test_a_table_that_would_cut_words_off_is_printed_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = printed(80, monkeypatch), printed(36, monkeypatch)
    assert len([line for line in wide.splitlines() if "resnet56-large" in line and "threads 1" in line]) == 2
    assert "…" not in narrow
    assert len([line for line in narrow.splitlines() if line.split()[1:4] == ["model", "│", "resnet56-large"]]) == 2


def test_no_word_is_cut_off_in_a_table_that_just_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"model": "text10", "version": "1", "backend": "openvino", "ms at batch 1": "9.87", "exits after": "none"}
    for width in range(40, 70):  # from where the longest words of all columns fit to where all fits in one line
        found = printed(width, monkeypatch, row, rows=11)
        assert found.count("openvino") == 11
        assert max(map(len, found.splitlines())) <= width


@pytest.mark.parametrize("width", [36, 80])
def test_a_column_of_which_no_row_has_anything_is_left_out(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exits after" not in printed(width, monkeypatch)


def test_where_nobody_watches_a_line_says_now_and_then_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with progress("building resnet") as tell:
        now = 1.9
        tell("exporting", 0.0)  # work that is short says nothing
        now = 70.0
        tell("cutting", 0.4)
        now = 75.0
        tell("compiling", 0.5)
    assert capsys.readouterr().err == "building resnet: cutting, 40% after 0:01:10\n"


@pytest.mark.parametrize("file", [None, "models/net/1"])
def test_a_full_disk_is_told_with_what_to_do_next(file: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reporting():
        raise OSError(errno.ENOSPC, "No space left on device", file)
    said = capsys.readouterr().err
    assert "free some space there, or name another folder, and run it again" in said
    assert "Errno" not in said
    assert (file or "") in said
