"""What commands say where nobody watches a terminal."""

from threading import Event

import pytest
from rich.progress import Progress

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
