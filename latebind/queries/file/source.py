"""A TOML file as tables that are checked as they are read, and that know the line of each key for errors. Pure."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from keyword import iskeyword
from math import isfinite
from pathlib import Path

from latebind.domain.errors import QueryError

MAX_BYTES = 1 << 15
MAX_LINE = 2_000  # characters; the parser's time grows with the square of a key's parts
MAX_LINES = 1_000
MAX_STATEMENT = 50  # lines; after a longer statement lines are not found any more, because that would take too long
DEPTH = 6  # of nested keys: two more than a query can have

Keys = tuple[str, ...]
PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Source:
    """A file: its text with plain line ends, and the values in it."""

    file: Path
    text: str
    values: Mapping[str, object]

    @classmethod
    def read(cls, file: Path) -> "Source":
        """Return the content of a file. Raises `QueryError` if it is not TOML, or too large."""
        text = _text(file)
        try:
            return cls(file, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise QueryError(_no_toml(file, text, str(error))) from None
        except (ValueError, RecursionError) as error:  # a date that no calendar has, brackets a thousand deep
            raise QueryError(f"{file}:1: this is no TOML that can be read: {error}") from None

    def line(self, *keys: str) -> int:
        """Return the line on which these nested keys first stand, or the innermost of them that exists.

        Lines are searched for only now, because only errors need them.
        """
        lines: dict[Keys, int] = {}
        for path, line in _places(self.text):
            lines.setdefault(path, line)
        there = (keys[:count] for count in range(len(keys), 0, -1) if keys[:count] in lines)
        return lines[found] if (found := next(there, None)) else 1

    def error(self, message: str, *keys: str) -> QueryError:
        """Return the error about the value under these keys."""
        return QueryError(f"{self.file}:{self.line(*keys)}: {message}")


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise QueryError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise QueryError(f"{file}:1: the file has more than {MAX_BYTES} bytes: a query is described in less")
    try:
        text = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise QueryError(f"{file}:{line}: this is not UTF-8: save the file as UTF-8") from None
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise QueryError(f"{file}:{MAX_LINES}: the file has {len(lines)} lines: {MAX_LINES} at most")
    for number, one in enumerate(lines, 1):
        if len(one) > MAX_LINE:
            raise QueryError(f"{file}:{number}: the line has {len(one)} characters: {MAX_LINE} at most")
    return text


def _no_toml(file: Path, text: str, message: str) -> str:
    place = PLACE.search(message)
    line = place[1] if place and place[1] else text.count("\n") + 1
    column = f", column {place[2]}" if place and place[2] else ", at the end of the file"
    return f"{file}:{line}: this is no TOML{column}: {PLACE.sub('', message)}"


def _places(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of each value and its line, in order.

    The TOML parser itself finds where a statement ends: the beginning of a statement that continues is not valid TOML.
    """
    table: Keys = ()
    pending: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        pending.append(line)
        try:
            statement = tomllib.loads("\n".join(pending))
        except ValueError:
            if len(pending) > MAX_STATEMENT:
                return
            continue
        is_header = len(pending) == 1 and line.lstrip().startswith("[")
        inside: Keys = () if is_header else table
        for path in _paths(statement):
            yield inside + path, number - len(pending) + 1
            table = path if is_header else table
        pending = []


def _paths(values: object, depth: int = DEPTH) -> Iterator[Keys]:
    """Yield the keys of everything inside, outer ones first; elements of arrays have no keys of their own."""
    if isinstance(values, list):
        for one in values:
            yield from _paths(one, depth)
    elif isinstance(values, dict) and depth:
        for key, value in values.items():
            yield (key,)
            for path in _paths(value, depth - 1):
                yield (key, *path)


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
