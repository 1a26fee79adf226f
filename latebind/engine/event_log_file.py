"""The file of an engine's event log. If it cannot be written, the engine serves on without it."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from latebind.domain.actions import Action
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Event

logger = logging.getLogger(__name__)


class EventLogFile:
    """Writes an event log to `path`. After the first error (a full disk, say), which it logs, it writes no more."""

    def __init__(self, path: Path, config: SchedulerConfig) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._log: EventLog | None = None
        self._attempt(lambda: self._open(config))

    def write(self, now: float, event: Event, actions: Iterable[Action]) -> None:
        """Append one entry (`EventLog.write`)."""
        log = self._log
        if log is not None:
            self._attempt(lambda: log.write(now, event, actions))

    def close(self) -> None:
        """Write what is buffered and close the file."""
        file, self._file, self._log = self._file, None, None
        if file is not None:
            self._attempt(file.close)

    def _open(self, config: SchedulerConfig) -> None:
        self._file = self._path.open("wb")
        self._log = EventLog(self._file, config)
        self._file.flush()  # if this process is killed, what is in the file can be replayed

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do this. If it raises `OSError`, log that and give up the file."""
        try:
            action()
        except OSError as error:
            logger.error("%s is not written any more: %s. It replays up to its last whole line", self._path, error)
            file, self._file, self._log = self._file, None, None
            if file is not None:
                with suppress(OSError):  # there is no room for what is still buffered either
                    file.close()
