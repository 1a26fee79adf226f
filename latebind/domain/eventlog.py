"""The log of events and actions, one JSON line for each event. A log can be replayed, so it can be a bug report.

Line 1 is the configuration of the scheduler, every other line `[now, event, actions]`. What is infinite, such as the
deadline of a request that has none, is the number 1e999.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import IO, Any, get_args

import msgspec

from latebind.domain.actions import Action, Outcome
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import ConfigError
from latebind.domain.events import Event

KINDS: dict[str, Any] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Action))}
FIELDS = {name: kind.__struct_fields__ for name, kind in KINDS.items()}
OUTCOMES = {name: fields.index("outcome") for name, fields in FIELDS.items() if "outcome" in fields}
TYPES = {name: [field.type for field in msgspec.structs.fields(kind)] for name, kind in KINDS.items()}
FLOATS = {name: [i for i, of in enumerate(types) if of in (float, float | None)] for name, types in TYPES.items()}
GONE: dict[str, dict[str, Any]] = {  # settings of older logs, with their defaults
    "policy": {"leave": True, "coverage": 0.9, "compact": True, "max_alive": 0, "learn": True},
    "residency": {"trim": True, "order": "waits", "beside": True, "foresight": True},
}
INFINITE = {inf: msgspec.Raw(b"1e999"), -inf: msgspec.Raw(b"-1e999")}  # msgspec writes null, and refuses to read these
_read = msgspec.json.Decoder(float_hook=float).decode
_read_entry = msgspec.json.Decoder(tuple[float, list[Any], list[list[Any]]], float_hook=float).decode


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
        file.write(self._encode(_finite(msgspec.to_builtins(config))) + b"\n")

    def write(self, now: float, event: Event, actions: Iterable[Action]) -> None:
        """Append one entry."""
        self._file.write(self._encode([now, _plain(event), [_plain(action) for action in actions]]) + b"\n")


def read_log(file: IO[bytes]) -> tuple[SchedulerConfig, Iterator[Entry]]:
    """Return the configuration and the entries of a log; a line that is no entry raises `ConfigError`.

    A last line without its end is left out.
    """
    header = file.readline()
    try:
        config = msgspec.convert(_of_today(_read(header)), SchedulerConfig, str_keys=True)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"line 1 is not the configuration of a scheduler ({error}): is this an event log?") from None
    return config, _entries(file)


def _of_today(config: Any) -> Any:
    """Return the configuration of an older log without the settings that are gone, where these were at their defaults.

    Where they were not, they stay, and `read_log` says that there is no such setting.
    """
    if not isinstance(config, dict):
        return config
    for part, gone in GONE.items():
        for key, default in gone.items():
            if key in config.get(part, {}) and config[part][key] == default:
                del config[part][key]
    if config.get("policy", {}).get("name") == "serial":
        config["policy"] |= {"name": "graph", "max_batch": 1}
    return config


def _entries(file: IO[bytes]) -> Iterator[Entry]:
    for number, line in enumerate(file, start=2):
        if not line.endswith(b"\n"):  # an engine that was killed has not written all of it
            return
        try:
            now, event, actions = _read_entry(line)
            yield Entry(now, _made(event), tuple(_made(action) for action in actions))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"line {number} of the event log is broken ({error}): cut the log before it") from None


def _plain(thing: Event | Action) -> list[Any]:
    name = type(thing).__name__
    values = [getattr(thing, field) for field in FIELDS[name]]
    for i in FLOATS[name]:
        values[i] = INFINITE.get(values[i], values[i])
    return [name, *values]


def _finite(value: Any) -> Any:
    """Return a copy with what is infinite as JSON that says so."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return INFINITE.get(value, value) if isinstance(value, float) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _made(plain: list[Any]) -> Any:
    name, *values = map(_tuples, plain)
    if name == "Arrived" and len(values) > 5 and isinstance(values[5], tuple):  # older: the lengths of answers
        del values[5]
    del values[len(FIELDS[name]) :]  # older: the rows of a run
    if name in OUTCOMES:
        values[OUTCOMES[name]] = Outcome(values[OUTCOMES[name]])
    for i, value in enumerate(values):
        if value is None and TYPES[name][i] is float:  # so older logs have what is infinite
            values[i] = inf
    return KINDS[name](*values)
