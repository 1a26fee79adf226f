"""The event log of an engine, which is given up where it cannot be written: the engine serves on without it."""

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


class Noting:
    """Writes events and actions to `path` until the disk is full or fails, which is told once."""

    def __init__(self, path: Path, config: SchedulerConfig) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._log: EventLog | None = None
        self._try(lambda: self._open(config))

    def write(self, now: float, event: Event, actions: Iterable[Action]) -> None:
        """Append one entry (`EventLog.write`)."""
        log = self._log
        if log is not None:
            self._try(lambda: log.write(now, event, actions))

    def close(self) -> None:
        """Write what is left and close the file."""
        file, self._file, self._log = self._file, None, None
        if file is not None:
            self._try(file.close)

    def _open(self, config: SchedulerConfig) -> None:
        self._file = self._path.open("wb")
        self._log = EventLog(self._file, config)

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except OSError as error:
            logger.error("%s is not written any more: %s. It replays up to its last whole line", self._path, error)
            file, self._file, self._log = self._file, None, None
            if file is not None:
                with suppress(OSError):  # for what it still holds there is no place either
                    file.close()
