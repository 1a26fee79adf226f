"""The log of events and actions, one JSON line for each event. A log can be replayed, so it can be a bug report.

Line 1 is the configuration of the scheduler, every other line `[now, event, actions]`. Infinity, such as the deadline
of a request that has none, is the number 1e999.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import IO, Any

import msgspec

from latebind.domain.actions import Action
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import ConfigError
from latebind.domain.events import Event

INFINITE = {inf: msgspec.Raw(b"1e999"), -inf: msgspec.Raw(b"-1e999")}  # msgspec writes null, and refuses to read these
_read = msgspec.json.Decoder(float_hook=float).decode


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, its time (seconds), and the scheduler's actions."""

    now: float
    event: Event
    actions: tuple[Action, ...]


class EventLog:
    """Writes entries to an open binary file, which the caller closes."""

    def __init__(self, file: IO[bytes], config: SchedulerConfig) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode
        self._write(config)

    def write(self, now: float, event: Event, actions: Iterable[Action]) -> None:
        """Append one entry."""
        self._write((now, event, tuple(actions)))

    def _write(self, line: Any) -> None:
        self._file.write(self._encode(_finite(msgspec.to_builtins(line))) + b"\n")


def read_log(file: IO[bytes]) -> tuple[SchedulerConfig, Iterator[Entry]]:
    """Return the configuration and the entries of a log; a line that is not an entry raises `ConfigError`.

    An incomplete last line is left out.
    """
    header = file.readline()
    try:
        config = msgspec.convert(_read(header), SchedulerConfig, str_keys=True)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"line 1 is not the configuration of a scheduler ({error}): is this an event log?") from None
    return config, _entries(file)


def _entries(file: IO[bytes]) -> Iterator[Entry]:
    for number, line in enumerate(file, start=2):
        if not line.endswith(b"\n"):  # an engine that was killed has not written all of it
            return
        try:
            yield Entry(*msgspec.convert(_read(line), tuple[float, Event, tuple[Action, ...]]))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"line {number} of the event log is invalid ({error}): remove it and all lines after it"
            ) from None


def _finite(value: Any) -> Any:
    """Return a copy with infinite numbers as JSON numbers."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return INFINITE.get(value, value) if isinstance(value, float) else value
