"""What is logged of models that raise: each kind of failure once with its traceback, then only how often."""

import logging
from threading import Lock

MOST_KINDS = 256  # that are told apart
OTHERS = "others", ""


class Failures:
    """Counts failures by what failed, the type of error and the line that raised it. From any thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: dict[tuple[str, str], int] = {}
        self._counting = Lock()

    def log(self, what: str, error: Exception, request: str = "") -> None:
        """Count a failure of `what`; log the first of its kind, and the tenth, the hundredth and so on.

        `request` says whose it was. What differs between requests belongs there, not into `what`.
        """
        kind = what, f"{type(error).__name__} at {_line_of(error)}"
        with self._counting:
            if kind not in self._counts and len(self._counts) >= MOST_KINDS:
                kind = OTHERS
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count == 1:
            self._logger.error("%s failed%s", what, request, exc_info=error)
        elif str(count).strip("0") == "1":
            self._logger.error("%s has failed %d times with %s", what, count, kind[1] or "other errors")


def _line_of(error: Exception) -> str:
    """Return the file and line that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
