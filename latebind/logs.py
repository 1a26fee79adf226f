"""How processes write their logs: one line for each record, as text or JSON, which no value can break or forge.

A record names its request in the attribute `request` (`extra={"request": ...}`), or is about the one in `REQUEST`.
"""

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

REQUEST: ContextVar[str] = ContextVar("request", default="")  # the client's id of the request that this task answers

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # what ends a line, or moves a terminal's cursor


def write_logs(process: str, form: str, *, stream: TextIO | None = None) -> None:
    """Make this process, named `process` in its log, write the log as `text` or `json` from now on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process) if form == "json" else TextLines(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """Time, process, level and message; further lines of a record are indented."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process} %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with what could break it shown as escapes."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """Return the trace, each line indented."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]


class JsonLines(logging.Formatter):
    """An object for each record: time (UTC), level, process, logger, message; request and error if there are any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = getattr(record, "request", None) or REQUEST.get()
        if request:
            line["request"] = request
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def printable(text: str) -> str:
    """Return text on one line, its control characters as escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(["  " + printable(line) for line in text.split("\n")])
