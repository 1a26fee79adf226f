"""The settings that clients may change while the server runs: which calls are traced, and what is logged.

These are the protocol's trace and logging extensions. Transports pass values as received: strings, lists of strings,
numbers and booleans.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from latebind.domain.errors import InvalidRequest

LEVELS = ("OFF", "TIMESTAMPS")
NUMBERS = {"trace_rate": r"[1-9][0-9]{0,17}", "trace_count": r"-1|0|[1-9][0-9]{0,17}"}  # settings that are numbers
TRACE_SETTINGS = ("trace_level", "trace_rate", "trace_count", "log_frequency")
NO_FILE = "0"  # the only log_frequency: traces are not written to files, but perf_analyzer sends it
SWITCHES = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
LOGGER = "latebind"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Whether calls are traced: every `rate`-th of them, `count` in all (-1: no limit)."""

    level: str = LEVELS[0]
    rate: int = 1000
    count: int = -1

    @classmethod
    def of_share(cls, share: float) -> "TraceSettings":
        """Return the settings that trace about this share (0 to 1) of all calls."""
        return cls(LEVELS[1], max(1, round(1.0 / share))) if share > 0.0 else cls()

    def traced(self, number: int) -> bool:
        """Return whether the call with this number is traced; 1 is the first since the settings took effect."""
        if self.level == LEVELS[0] or number % self.rate:
            return False
        return self.count < 0 or number // self.rate <= self.count

    def as_dict(self) -> dict[str, object]:
        """Return the settings in the protocol's form."""
        return {
            "trace_level": [self.level],
            "trace_rate": str(self.rate),
            "trace_count": str(self.count),
            "log_frequency": NO_FILE,
        }


class Traces:
    """The trace settings of each model, and the default ones. All methods are called from the event loop."""

    def __init__(self, settings: TraceSettings | None = None) -> None:
        self._start = settings or TraceSettings()
        self._changed: dict[str | None, dict[str, object]] = {None: {}}  # by model; None: the default
        self._counted: dict[str | None, tuple[TraceSettings, count[int]]] = {}
        self.any = False  # whether calls of any model are traced
        self._take_effect()

    def wanted(self, model: str) -> bool:
        """Count a call of this model and return whether to trace it."""
        settings, numbers = self._counted.get(model) or self._counted[None]
        return settings.level != LEVELS[0] and settings.traced(next(numbers))

    def as_dict(self, model: str | None = None) -> dict[str, object]:
        """Return the settings of a model, or the default ones."""
        return (self._counted.get(model) or self._counted[None])[0].as_dict()

    def update(self, given: Mapping[str, object], model: str | None = None) -> None:
        """Change settings and restart the counting. None or an empty list restores the default of a setting.

        Raises `InvalidRequest`, and then changes nothing.
        """
        _check_known(given, TRACE_SETTINGS)
        values = {key: _trace_value(key, value) for key, value in given.items()}
        fields = {key.removeprefix("trace_"): value for key, value in values.items() if key != "log_frequency"}
        own = {**self._changed.get(model, {}), **fields}
        self._changed[model] = {key: value for key, value in own.items() if value is not None}
        self._take_effect()

    def _take_effect(self) -> None:
        everywhere = self._changed[None]
        self._counted = {
            model: (replace(self._start, **{**everywhere, **own}), count(1))  # type: ignore[arg-type]
            for model, own in self._changed.items()
            if own or model is None
        }
        self.any = any(settings.level != LEVELS[0] for settings, _ in self._counted.values())


class Log:
    """The log settings of the frontend's process. They switch Python's logging for all of latebind."""

    def __init__(self) -> None:
        self._settings: dict[str, object] = {"log_file": "", **dict.fromkeys(SWITCHES, True)}
        self._settings |= {"log_verbose_level": 0, "log_format": "default"}
        self._filter = _Hiding()

    def as_dict(self) -> dict[str, object]:
        """Return the settings in the protocol's form."""
        return dict(self._settings)

    def update(self, given: Mapping[str, object]) -> None:
        """Change settings. Raises `InvalidRequest`, and then changes nothing."""
        _check_known(given, tuple(self._settings))
        for key, value in given.items():
            if key in ("log_file", "log_format") and value != self._settings[key]:
                raise InvalidRequest(f"{key} cannot be changed while the server runs: leave it out")
            if key in SWITCHES and not isinstance(value, bool):
                raise InvalidRequest(f"{key} is {value!r:.40}: give true or false")
            if key == "log_verbose_level" and (
                not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32
            ):
                raise InvalidRequest(f"log_verbose_level is {value!r:.40}: give 0 or 1")
        if not given:
            return
        self._settings |= given
        # The lowest level that is on; a filter on the log's handlers hides higher levels that are off.
        on = [level for key, level in SWITCHES.items() if self._settings[key]]
        lowest = min(on, default=logging.CRITICAL)
        logging.getLogger(LOGGER).setLevel(logging.DEBUG if self._settings["log_verbose_level"] else lowest)
        self._filter.hidden = frozenset(set(SWITCHES.values()) - set(on))
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._filter)  # adding it twice has no effect


class _Hiding(logging.Filter):
    """A filter that hides latebind's own records of some levels."""

    hidden: frozenset[int] = frozenset()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self.hidden or record.name.partition(".")[0] != LOGGER


def _check_known(given: Mapping[str, object], known: tuple[str, ...]) -> None:
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"there is no setting {unknown!r:.100}: there are {', '.join(known)}")


def _trace_value(key: str, value: object) -> str | int | None:
    """Return the new value of a trace setting, or None to restore its default."""
    single = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    if single is None or single in ([], ()):
        return None
    if key == "trace_level":
        if single not in LEVELS:
            raise InvalidRequest(f"trace_level is {value!r:.100}: give one of {', '.join(LEVELS)}")
        return str(single)
    if key == "log_frequency":
        if single != NO_FILE:
            raise InvalidRequest(f"log_frequency is {value!r:.100}: traces are not written to files, leave it out")
        return None
    least = 1 if key == "trace_rate" else -1
    if not isinstance(single, str) or not re.fullmatch(NUMBERS[key], single):
        raise InvalidRequest(f"{key} is {value!r:.100}: give a number of {least} or more, as a text")
    return int(single)
