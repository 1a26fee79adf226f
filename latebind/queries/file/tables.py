"""Tables of a TOML file, read with checks: every value has the type that is expected, and every key is known. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from keyword import iskeyword
from math import isfinite

from latebind.domain.errors import QueryError
from latebind.queries.file.lines import Keys, Source

MOST = 64  # entries of a table or an array
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "an array", dict: "a table"}


@dataclass(frozen=True, slots=True)
class Table:
    """The table under `keys` of a file."""

    source: Source
    keys: Keys
    values: Mapping[str, object]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, message: str, key: str = "") -> QueryError:
        """Return the error about the table or one of its values."""
        return self.source.error(message, *self.keys, *([key] if key else []))

    @contextmanager
    def about(self, key: str) -> Iterator[None]:
        """Add the line and name of a value to errors that are raised inside the block."""
        try:
            yield
        except QueryError as error:
            raise self.error(f"{self.title(key)}: {error}", key) from None

    def title(self, key: str) -> str:
        """Return the name of a value in error messages."""
        return ".".join((*self.keys, key))

    def check_keys(self, known: Collection[str]) -> None:
        """Raise `QueryError` for an unknown key."""
        for key in self.values:
            if key not in known:
                raise self.error(f"{self.title(key)[:200]} is not known here: take {', '.join(known)}", key)

    def table(self, key: str) -> "Table":
        """Return a table inside this one, empty if it does not exist."""
        values = self.values.get(key, {})
        if not isinstance(values, dict):
            raise self._wrong(key, "a table")
        if len(values) > MOST:
            raise self.error(f"{self.title(key)} has {len(values)} entries: {MOST} at most", key)
        return Table(self.source, (*self.keys, key), values)

    def names(self) -> Iterator[str]:
        """Yield the keys; each must be a name that expressions can use."""
        for key in self.values:
            if not NAME.fullmatch(key) or iskeyword(key):
                wanted = "a letter or _, then letters, digits or _, 64 at most, and no word of the language"
                raise self.error(f"{key[:200]!r} is no name: {wanted}", key)
            yield key

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def number(self, key: str) -> float:
        """Return a finite number."""
        return self._finite(key, self.values.get(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an array of finite numbers."""
        return tuple(self._finite(key, value) for value in self._array(key, "numbers"))

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return an array of positive integers."""
        values = self._array(key, "whole numbers")
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self.error(f"{self.title(key)} has {value!r:.50} in it: give whole numbers above 0", key)
        return tuple(value for value in values if isinstance(value, int))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of different texts."""
        values = self._array(key, "texts")
        for place, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{self.title(key)} has {value!r:.50} in it: give texts", key)
            if value in values[:place]:
                raise self.error(f"{self.title(key)} has {value!r:.100} twice: name each once", key)
        return tuple(str(value) for value in values)

    def _array(self, key: str, of: str) -> list[object]:
        values = self.values.get(key)
        if not isinstance(values, list):
            raise self._wrong(key, f"an array of {of}")
        if len(values) > MOST:
            raise self.error(f"{self.title(key)} has {len(values)} entries: {MOST} at most", key)
        return values

    def _finite(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            if key not in self.values or value is self.values[key]:
                raise self._wrong(key, "a number")
            raise self.error(f"{self.title(key)} has {_kind(value)} in it: give numbers", key)
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if not isfinite(number):
            raise self.error(f"{self.title(key)} is {number}: give a finite number", key)
        return number

    def _wrong(self, key: str, wanted: str) -> QueryError:
        if key not in self.values:
            return self.error(f"{self.title(key)} is missing: give {wanted}", key)
        return self.error(f"{self.title(key)} is {_kind(self.values[key])}: give {wanted}", key)


def _kind(value: object) -> str:
    """Return the type of a value in the words of error messages."""
    return KINDS.get(type(value), "a date or time")
