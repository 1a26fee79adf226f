"""Labelled texts, pictures and sounds in files of people: what learned caches of a folder are made from."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latebind.domain.errors import ConfigError
from latebind.domain.model import Media
from latebind.domain.wording import instead
from latebind.preprocessing.preprocessor import Raw

TEXT, PAIR, LABEL = "text", "text_pair", "label"  # the columns, and the raw inputs of texts
ENDINGS = {
    Media.PICTURE: {".jpg", ".jpeg", ".png", ".webp"},
    Media.SOUND: {".wav", ".flac"},
}
MOST_ROWS = 1_000_000
MOST_FILE_BYTES = 64 << 20  # of one picture or sound
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
WORDS = {Media.PICTURE: "pictures", Media.SOUND: "sounds"}


@dataclass(frozen=True, slots=True)
class Labelled:
    """Raw rows by input, each as many, and the classes that they are of, by number."""

    raw: Mapping[str, Sequence[Raw]]
    labels: Sequence[int]


def read_labelled(
    path: Path, media: Media, labels: Sequence[str], *, text_column: str = TEXT, label_column: str = LABEL
) -> Labelled:
    """Return the rows of a table of texts, or of a folder with a subfolder of pictures or sounds for each class.

    `labels` are the names of the model's classes; a table may also have their numbers. Rows come as they stand in the
    file. Raises `ConfigError`, which names the row.
    """
    if media is Media.TEXT:
        if path.suffix not in TABLES:
            raise ConfigError(f"--data {path}: give a table of texts, a file that ends in {', '.join(TABLES)}")
        return _read_table(path, labels, text_column, label_column)
    if not path.is_dir():
        raise ConfigError(f"--data {path}: give a folder that has a folder of {WORDS[media]} for each class")
    return _read_tree(path, media, labels)


def read_texts(path: Path, *, text_column: str = TEXT) -> list[str]:
    """Return the texts of a table, whatever else it has. Raises `ConfigError`, which names the row."""
    if path.suffix not in TABLES:
        raise ConfigError(f"--data {path}: give a table of texts, a file that ends in {', '.join(TABLES)}")
    found = list[str]()
    for number, row in enumerate(_rows(path), 1):
        if number > MOST_ROWS:
            raise ConfigError(f"{path} has more than {MOST_ROWS} rows: give fewer")
        if not isinstance(row.get(text_column), str):
            there = ", ".join(str(each) for each in row if each is not None)
            where = f"{path}, row {number}"
            raise ConfigError(f"{where} has no {text_column!r}: it has {there:.200}; name the column by --text-column")
        found.append(row[text_column])
    if not found:
        raise ConfigError(f"{path} has no rows")
    return found


def _read_tree(path: Path, media: Media, labels: Sequence[str]) -> Labelled:
    """Return what lies in the folders of classes."""
    raw, found = list[Raw](), list[int]()
    for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
        number = _label(folder.name, labels, f"{folder}")
        for file in sorted(each for each in folder.iterdir() if each.suffix.lower() in ENDINGS[media]):
            if (size := file.stat().st_size) > MOST_FILE_BYTES:
                raise ConfigError(f"{file} has {size} bytes, and at most {MOST_FILE_BYTES} are read")
            if len(raw) == MOST_ROWS:
                raise ConfigError(f"{path} has more than {MOST_ROWS} {WORDS[media]}: give fewer")
            raw.append(file.read_bytes())
            found.append(number)
    if not raw:
        endings = ", ".join(sorted(ENDINGS[media]))
        raise ConfigError(f"{path} has no folders of {WORDS[media]} ({endings}), one for each class, with its name")
    return Labelled({"image" if media is Media.PICTURE else "sound": raw}, found)


def _read_table(path: Path, labels: Sequence[str], text_column: str, label_column: str) -> Labelled:
    """Return the texts of a table. The second ones count where there is a column of these."""
    texts, pairs, found = list[Raw](), list[Raw](), list[int]()
    for number, row in enumerate(_rows(path), 1):
        where = f"{path}, row {number}"
        if number > MOST_ROWS:
            raise ConfigError(f"{path} has more than {MOST_ROWS} rows: give fewer")
        for column, option in ((text_column, "--text-column"), (label_column, "--label-column")):
            if row.get(column) is None:
                there = ", ".join(str(each) for each in row if each is not None)
                raise ConfigError(f"{where} has no {column!r}: it has {there:.200}; name the column by {option}")
        if not isinstance(row[text_column], str) or not isinstance(row.get(PAIR, ""), str):
            raise ConfigError(f"{where}: {text_column!r} is no text")
        texts.append(row[text_column])
        pairs += [row[PAIR]] if PAIR in row else []
        found.append(_label(row[label_column], labels, where))
    if not texts:
        raise ConfigError(f"{path} has no rows")
    if pairs and len(pairs) != len(texts):
        raise ConfigError(f"{path} has {PAIR!r} in {len(pairs)} of {len(texts)} rows: give it in all or in none")
    return Labelled({TEXT: texts, PAIR: pairs} if pairs else {TEXT: texts}, found)


def _label(said: object, labels: Sequence[str], where: str) -> int:
    """Return the number of a class that is told by its name, or by its number."""
    if isinstance(said, str) and said in labels:
        return labels.index(said)
    number = int(said) if isinstance(said, str) and said.isdecimal() and len(said) < 10 else said
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(labels):
        return number
    raise ConfigError(f"{where}: there is no class {str(said)!r:.80}{instead(str(said), labels)}")


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table by column. Raises `ConfigError` for what is none."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".jsonl":
                yield from _objects(path, file)
            else:
                yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as {path.suffix.removeprefix('.')}, in UTF-8: {error}") from None


def _objects(path: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: no JSON ({error})") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path}, line {number}: give an object, such as {{{TEXT!r}: ..., {LABEL!r}: ...}}")
        yield found


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ConfigError(f"{path}: pyarrow reads Parquet, and is not installed: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches():
                yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path} is no Parquet file ({error})") from None
