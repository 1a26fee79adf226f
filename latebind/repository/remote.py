"""A repository in a shared folder or object store, read through fsspec: its listing, and the bytes of its files.

Names in a listing are not trusted. `mirror` keeps the local copy.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.queries.file.definition import ENDING
from latebind.repository.manifest import MANIFEST, NAME, VERSION, FileEntry

STAMPS = ("ETag", "etag", "LastModified", "last_modified", "mtime", "modified", "created", "md5Hash")
CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file in a listing: its size, and a stamp that changes when the file does, empty if the store has none."""

    bytes: int
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """A model version: its path below the root, and its files by their names in the model directory."""

    name: str
    version: str
    place: str
    files: Mapping[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """The content of a store: model versions, and query files by name."""

    versions: tuple[RemoteVersion, ...]
    queries: Mapping[str, RemoteFile]


class Remote:
    """The store at a URL. Raises `ConfigError` if fsspec or its driver is missing, else `RepositoryError`."""

    def __init__(self, url: str) -> None:
        self.shown = CREDENTIALS.sub("", url)
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415  (an optional dependency)
        except ImportError:
            raise ConfigError("fsspec is not installed: pip install 'latebind[remote]'") from None
        try:
            self._files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{self.shown} cannot be opened: {error}") from None
        self._root = root.rstrip("/")

    def look(self) -> RemoteListing:
        """List what is there now."""
        with self._reading("listed"):
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
        return arrange(self._below(found), self._root)

    def read(self, place: str, most: int) -> bytes:
        """Return the bytes of a file below the root; raises if it is larger than `most`."""
        with self._reading(place), self._files.open(self._path(place), "rb") as file:
            data: bytes = file.read(most + 1)
        if len(data) > most:
            raise RepositoryError(f"{self.shown}/{place} is larger than {most} bytes: that is no such file")
        return data

    def fetch(self, place: str, entry: FileEntry, to: Path) -> None:
        """Write a file below the root to `to`; raises `RepositoryError` unless it equals the manifest entry."""
        digest, left = hashlib.sha256(), entry.bytes
        with self._reading(place), self._files.open(self._path(place), "rb") as source, to.open("wb") as target:
            while left >= 0 and (piece := source.read(min(PIECE_BYTES, left + 1))):
                left -= len(piece)
                digest.update(piece)
                target.write(piece)
        if left != 0 or digest.hexdigest() != entry.sha256:
            raise RepositoryError(
                f"{self.shown}/{place} differs from the manifest: it was altered or is half uploaded, upload it again"
            )

    def _below(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, RemoteFile]:
        """Return the files of a listing by their paths below the root; others are ignored."""
        start = f"{self._root}/"
        return {
            path.removeprefix(start): RemoteFile(int(about.get("size") or 0), _stamp(about))
            for path, about in found.items()
            if path.startswith(start) and about.get("type") == "file"
        }

    def _path(self, place: str) -> str:
        return f"{self._root}/{place}"

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turn any exception of a driver into one error, without credentials."""
        try:
            yield
        except Exception as error:
            told = CREDENTIALS.sub("", f"{type(error).__name__}: {error}")
            raise RepositoryError(f"{self.shown} cannot be read ({what}: {told})") from error


def is_remote(place: str) -> bool:
    """Return whether a repository is named by a URL and not by a path."""
    return "://" in place


def arrange(files: Mapping[str, RemoteFile], root: str) -> RemoteListing:
    """Arrange files by their paths below the root. Only plain names are accepted, so none leads elsewhere."""
    plain = {place: stored for place, stored in files.items() if all(map(NAME.fullmatch, place.split("/")))}
    folders = [place.rpartition("/")[0] for place in plain if place.rpartition("/")[2] == MANIFEST]
    folders = [""] if "" in folders else folders  # the root is itself a model
    tops = {folder: named for folder in folders if (named := _named(folder, root)) is not None}
    within: dict[str, dict[str, RemoteFile]] = {folder: {} for folder in tops}
    for place, stored in plain.items():
        for folder, name in _splits(place):
            if folder in within:
                within[folder][name] = stored
    found = {named: RemoteVersion(*named, folder, within[folder]) for folder, named in sorted(tops.items())}
    queries = {place: stored for place, stored in plain.items() if "/" not in place and place.endswith(ENDING)}
    return RemoteListing(tuple(found.values()), queries)


def _named(folder: str, root: str) -> tuple[str, str] | None:
    """Return the name and version of the model in a folder, None if no model may be there.

    A model without a folder for its version counts as version 1, unless there is another one (`sorted` has it last).
    """
    parts = (folder or root).split("/")
    if not folder:
        parts = parts[-2:] if VERSION.fullmatch(parts[-1]) else parts[-1:]
    match parts:
        case [name] if NAME.fullmatch(name):
            return name, "1"
        case [name, version] if NAME.fullmatch(name) and VERSION.fullmatch(version):
            return name, version
    return None


def _splits(place: str) -> Iterator[tuple[str, str]]:
    """Yield the folders that a file may belong to, each with its name there: `NAME` or `caches/NAME`."""
    parts = place.split("/")
    for count in (len(parts) - 1, len(parts) - 2):
        if count >= 0:
            yield "/".join(parts[:count]), "/".join(parts[count:])


def _stamp(about: Mapping[str, Any]) -> str:
    return " ".join(str(about[key]) for key in STAMPS if about.get(key) is not None)
