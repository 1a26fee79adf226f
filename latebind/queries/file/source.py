"""A query file as TOML values that know the line of each key, for errors. Pure."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from latebind.domain.errors import QueryError

MAX_BYTES = 1 << 15
MAX_LINE = 2_000  # characters; the parser's time grows with the square of a key's parts
MAX_LINES = 1_000
MAX_STATEMENT = 50  # lines; after a longer statement lines are not found any more, because that would take too long
DEPTH = 6  # of nested keys: two more than a query can have

Keys = tuple[str, ...]
Kind = TypeVar("Kind")
PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class LocatedError(QueryError):
    """An error that says its file and line."""


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
            raise QueryError(f"{file}:1: this is not valid TOML: {error}") from None

    def typed(self, kind: type[Kind], value: object, *keys: str) -> Kind:
        """Return the value under these keys converted to this type; raises `QueryError` if it is something else."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$")
            inner = tuple(re.findall(r"\.(\w+)", path))
            message = f": {problem.replace(' | null', '').lower():.500}"
            if unknown := UNKNOWN.match(problem):
                inner = (*inner, unknown[1])
                message = f" is not known here: take {', '.join(getattr(kind, '__struct_fields__', ()))}"
            raise self.error(f"{'.'.join((*keys, *inner)):.200}{message}", *keys, *inner) from None

    def line(self, *keys: str) -> int:
        """Return the line on which these nested keys first appear, or the innermost of them that exists.

        Lines are searched for only now, because only errors need them.
        """
        lines: dict[Keys, int] = {}
        for path, line in _places(self.text):
            lines.setdefault(path, line)
        existing = (keys[:count] for count in range(len(keys), 0, -1) if keys[:count] in lines)
        return lines[found] if (found := next(existing, None)) else 1

    def error(self, message: str, *keys: str) -> LocatedError:
        """Return the error about the value under these keys."""
        return LocatedError(f"{self.file}:{self.line(*keys)}: {message}")

    @contextmanager
    def about(self, *keys: str) -> Iterator[None]:
        """Add the line and name of a value to errors that are raised inside the block and have none."""
        try:
            yield
        except LocatedError:
            raise
        except QueryError as error:
            raise self.error(f"{'.'.join(keys)}: {error}", *keys) from None


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
    return f"{file}:{line}: this is not valid TOML{column}: {PLACE.sub('', message)}"


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
