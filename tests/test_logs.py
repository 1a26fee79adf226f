"""Lines of the log: one for each record, whatever its values hold."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from latebind.domain.errors import Failed
from latebind.logs import REQUEST, JsonLines, TextLines, write_logs
from latebind.server.faults import report

FORGED = "x\n2026-01-01 00:00:00,000 frontend ERROR forged\r\x1b[2K\u2028"


def record(message: str, *values: object, error: Exception | None = None, **extra: object) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("latebind.frontend", logging.WARNING, "f.py", 1, message, values, info)
    made.__dict__.update(extra)
    return made


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_json_line_tells_time_level_process_logger_message_and_the_request_of_its_record_or_task() -> None:
    write = JsonLines("frontend").format
    line = json.loads(write(record("%s rows", 3)))
    assert datetime.fromisoformat(line.pop("time")).utcoffset() is not None
    assert line == {"level": "warning", "process": "frontend", "logger": "latebind.frontend", "message": "3 rows"}
    token = REQUEST.set("task's")
    try:
        assert json.loads(write(record("one")))["request"] == "task's"
        assert json.loads(write(record("one", request="its own")))["request"] == "its own"
    finally:
        REQUEST.reset(token)


@given(st.text())
@example(FORGED)
def test_no_value_breaks_a_line(value: str) -> None:
    assert len(JsonLines("frontend").format(record("%s", value)).splitlines()) == 1
    assert len(TextLines("frontend").format(record("%s", value)).splitlines()) == 1
    assert "\x1b" not in TextLines("frontend").format(record("%s", value))


def test_an_error_stands_below_its_line_indented_and_within_a_json_line() -> None:
    failure = record("failed", error=ValueError(FORGED))
    assert "ValueError: x\n" in json.loads(JsonLines("engine").format(failure))["error"]
    first, *rest = TextLines("engine").format(failure).splitlines()
    assert first.endswith("engine WARNING failed")
    assert rest
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_writes_the_lines_it_was_told_to(form: str, lines: io.StringIO) -> None:
    write_logs("engine", form, stream=lines)
    logging.getLogger("latebind.engine").info("serving")
    (line,) = lines.getvalue().splitlines()
    found: Any = json.loads(line)["process"] if form == "json" else line.split()[2]
    assert found == "engine"


@pytest.mark.parametrize(("given", "kept"), [("order-17", True), ("", False), ("a\nb", False), ("x" * 200, False)])
def test_an_internal_error_goes_by_the_clients_id_where_that_is_harmless(
    given: str, kept: bool, lines: io.StringIO
) -> None:
    write_logs("frontend", "json", stream=lines)
    token = REQUEST.set(given)
    try:
        told = report(Failed("in /srv/models"))
    finally:
        REQUEST.reset(token)
    line = json.loads(lines.getvalue())
    assert told == f"internal error, request id {line['request']}"
    assert (line["request"] == given) is kept
    assert "/srv/models" in line["error"]
