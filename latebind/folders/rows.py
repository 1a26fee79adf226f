"""Labeled texts, pictures and sounds in users' files, from which learned caches of a folder are made.

Reading them does not need transformers, so a built model can be calibrated and measured on such files too.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latebind.domain.errors import ConfigError
from latebind.domain.model import Media
from latebind.domain.wording import instead
from latebind.folders.files import LABEL, PAIR, TEXT
from latebind.learned.samples import Samples
from latebind.preprocessing.preprocessor import CUT, Prepared, Preprocessor, Raw

RAW = {Media.TEXT: TEXT, Media.PICTURE: "image", Media.SOUND: "sound"}  # the raw inputs of labeled rows
SPLIT, FIT, CALIBRATE = "split", "train", "validation"  # a column, and its values
ENDINGS = {
    Media.PICTURE: {".jpg", ".jpeg", ".png", ".webp"},
    Media.SOUND: {".wav", ".flac"},
}
MOST_ROWS = 1_000_000
MOST_FILE_BYTES = 64 << 20  # of one picture or sound
AT_ONCE = 256  # rows that are read together
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
WORDS = {Media.PICTURE: "pictures", Media.SOUND: "sounds"}


@dataclass(frozen=True, slots=True)
class Labeled:
    """Raw rows by input, equally many for each, and optionally their classes, by number, and their use."""

    raw: Mapping[str, Sequence[Raw]]
    labels: Sequence[int] = ()
    splits: Sequence[object] = ()


def is_raw(data: str) -> bool:
    """Return whether this names a table or a folder of raw rows."""
    return Path(data).suffix in TABLES or Path(data).is_dir()


def read_labeled(
    path: Path, media: Media, labels: Sequence[str], *, text_column: str = TEXT, label_column: str = LABEL
) -> Labeled:
    """Return the rows of a table, or of a folder with a subfolder of pictures or sounds for each class.

    A table has texts, or names of files beside it in the column `image` or `sound`, or, in Parquet, their contents. Its
    column `split` may say which rows are to fit on (`train`) and which to calibrate on (`validation`). `labels` are the
    names of the model's classes; a table may also have their numbers. Rows keep the order of the file. Raises
    `ConfigError`, which names the row.
    """
    if path.suffix in TABLES:
        return _read_table(path, media, labels, text_column if media is Media.TEXT else RAW[media], label_column)
    known = ", ".join(TABLES)
    if media is Media.TEXT:
        raise ConfigError(f"--data {path}: give a table of texts, a file that ends in {known}")
    if not path.is_dir():
        form = f"a folder of {WORDS[media]} for each class, or a table of their files ({known})"
        raise ConfigError(f"--data {path}: give a folder that has {form}")
    return _read_tree(path, media, labels)


def read_samples(preprocessor: Preprocessor, labeled: Labeled, inputs: Sequence[str]) -> tuple[Samples, str]:
    """Return rows as these inputs of a model, and a note about those that were cut to fit, "" if none were.

    Raises `LatebindError` for what cannot be read.
    """
    rows = list[Prepared]()
    for begin in range(0, min(map(len, labeled.raw.values())), AT_ONCE):
        some = {name: each[begin : begin + AT_ONCE] for name, each in labeled.raw.items()}
        rows += preprocessor.prepare(some, CUT)
    cut = sum(row.cut > 0 for row in rows)
    made = {name: [torch.from_numpy(row.tensors[name]) for row in rows] for name in inputs}
    note = f"{cut} of {len(rows)} are cut to the longest text that the model reads" if cut else ""
    return Samples(made, torch.tensor(labeled.labels) if labeled.labels else None), note


def parts_of(samples: Samples, labeled: Labeled, *, seed: int) -> tuple[Samples, Samples]:
    """Return the rows to fit on and those to calibrate on, in random order: files may have one class first.

    They are halves if the file does not say which are which. Raises `ConfigError` for other values there.
    """
    if not labeled.splits:
        return samples.halves(seed)
    if CALIBRATE not in labeled.splits or {*labeled.splits} - {FIT, CALIBRATE}:
        values = ", ".join(sorted({repr(each)[:40] for each in labeled.splits}))
        wanted = f"rows to learn from have {FIT!r}, rows to calibrate on {CALIBRATE!r}"
        raise ConfigError(
            f"--data: {SPLIT!r} has {values:.200}: {wanted}; leave the column out to split the rows at random"
        )
    fits = torch.tensor([each == FIT for each in labeled.splits])
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    return samples.take(order[fits[order]]), samples.take(order[~fits[order]])


def read_texts(path: Path, *, text_column: str = TEXT) -> list[str]:
    """Return the texts of a table, ignoring other columns. Raises `ConfigError`, which names the row."""
    if path.suffix not in TABLES:
        raise ConfigError(f"--data {path}: give a table of texts, a file that ends in {', '.join(TABLES)}")
    found = list[str]()
    for number, row in enumerate(_rows(path), 1):
        if number > MOST_ROWS:
            raise ConfigError(f"{path} has more than {MOST_ROWS} rows: give fewer")
        if not isinstance(row.get(text_column), str):
            there = ", ".join(str(each) for each in row if each is not None)
            where = f"{path}, row {number}"
            raise ConfigError(
                f"{where} has no {text_column!r}: it has {there:.200}; name the column with --text-column"
            )
        found.append(row[text_column])
    if not found:
        raise ConfigError(f"{path} has no rows")
    return found


def _read_tree(path: Path, media: Media, labels: Sequence[str]) -> Labeled:
    """Return the files in the folders of classes."""
    raw, found = list[Raw](), list[int]()
    for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
        number = _label(folder.name, labels, f"{folder}")
        for file in sorted(each for each in folder.iterdir() if each.suffix.lower() in ENDINGS[media]):
            if len(raw) == MOST_ROWS:
                raise ConfigError(f"{path} has more than {MOST_ROWS} {WORDS[media]}: give fewer")
            raw.append(_content(file))
            found.append(number)
    if not raw:
        endings = ", ".join(sorted(ENDINGS[media]))
        raise ConfigError(f"{path} has no folders of {WORDS[media]} ({endings}), one for each class, with its name")
    return Labeled({RAW[media]: raw}, found)


def _content(file: Path) -> bytes:
    if (size := file.stat().st_size) > MOST_FILE_BYTES:
        raise ConfigError(f"{file} has {size} bytes, and at most {MOST_FILE_BYTES} are read")
    return file.read_bytes()


def _read_table(path: Path, media: Media, labels: Sequence[str], column: str, label_column: str) -> Labeled:
    """Return the rows of a table. Second texts are read if there is a column of them."""
    raw, pairs, found, splits = list[Raw](), list[Raw](), list[int](), list[object]()
    options = {
        column: "name the column with --text-column" if media is Media.TEXT else f"give the files of {WORDS[media]}"
    }
    options[label_column] = "name the column with --label-column"
    for number, row in enumerate(_rows(path), 1):
        where = f"{path}, row {number}"
        if number > MOST_ROWS:
            raise ConfigError(f"{path} has more than {MOST_ROWS} rows: give fewer")
        for name, advice in options.items():
            if row.get(name) is None:
                there = ", ".join(str(each) for each in row if each is not None)
                raise ConfigError(f"{where} has no {name!r}: it has {there:.200}; {advice}")
        if media is not Media.TEXT:
            raw.append(_file(row[column], path, where))
        elif isinstance(row[column], str) and isinstance(row.get(PAIR, ""), str):
            raw.append(row[column])
            pairs += [row[PAIR]] if PAIR in row else []
        else:
            raise ConfigError(f"{where}: {column!r} is not a text")
        found.append(_label(row[label_column], labels, where))
        splits += [row[SPLIT]] if SPLIT in row else []
    if not raw:
        raise ConfigError(f"{path} has no rows")
    for name, some in ((PAIR, pairs), (SPLIT, splits)):
        if some and len(some) != len(raw):
            raise ConfigError(f"{path} has {name!r} in {len(some)} of {len(raw)} rows: give it in all or in none")
    rows = {RAW[media]: raw, PAIR: pairs} if pairs else {RAW[media]: raw}
    return Labeled(rows, found, splits)


def _file(value: object, path: Path, where: str) -> bytes:
    """Return the picture or sound that a table names, or contains, as Hugging Face datasets in Parquet do."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {value!r:.80} is not the name of a file")
    if not (file := path.parent / value).is_file():
        raise ConfigError(f"{where}: there is no file {value!r:.200}; names are relative to {path.parent}")
    return _content(file)


def _label(value: object, labels: Sequence[str], where: str) -> int:
    """Return the number of a class that is given by its name or number."""
    if isinstance(value, str) and value in labels:
        return labels.index(value)
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(labels):
        return number
    raise ConfigError(f"{where}: there is no class {str(value)!r:.80}{instead(str(value), labels)}")


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table by column. Raises `ConfigError` for other files."""
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
            raise ConfigError(f"{path}, line {number}: invalid JSON ({error})") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path}, line {number}: give an object, such as {{{TEXT!r}: ..., {LABEL!r}: ...}}")
        yield found


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as opened:
            for batch in opened.iter_batches():
                yield from batch.to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{path} is not a Parquet file ({error})") from None
