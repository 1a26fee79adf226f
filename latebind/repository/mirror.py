"""A repository in a shared folder or object store, read through fsspec, and the local folder that mirrors it.

Names in a listing are not trusted. A version appears here by one rename, when it is complete. Several processes may
share the folder.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from latebind.domain.config import RepositoryConfig
from latebind.domain.errors import ConfigError, LatebindError, RepositoryError
from latebind.domain.split import Split
from latebind.queries.file.definition import ENDING, model_names
from latebind.repository.directory import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    NAME,
    VERSION,
    FileEntry,
    Manifest,
    ModelDirectory,
    Writer,
    manifest_in,
    read_manifest,
    write_bytes,
)
from latebind.repository.listing import Repository, Selection, Serving, find_queries

CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """A model version: its path below the root, and the sizes of its files by their names in the model directory."""

    name: str
    version: str
    place: str
    files: Mapping[str, int]

    def at(self, name: str) -> str:
        """Return the path below the root of a file."""
        return f"{self.place}/{name}" if self.place else name


RemoteListing = tuple[tuple[RemoteVersion, ...], tuple[str, ...]]  # all versions, and the names of query files


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
        """List the current contents."""
        with self._reading("listed"):
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
        start = f"{self._root}/"  # other names that a store lists are ignored
        below = {
            path.removeprefix(start): int(about.get("size") or 0)
            for path, about in found.items()
            if path.startswith(start) and about.get("type") == "file"
        }
        return arrange(below, self._root)

    def read(self, place: str, most: int) -> bytes:
        """Return the bytes of a file below the root; raises if it is larger than `most`."""
        with self._reading(place), self._files.open(f"{self._root}/{place}", "rb") as file:
            data: bytes = file.read(most + 1)
        if len(data) > most:
            raise RepositoryError(
                f"{self.shown}/{place} is larger than {most} bytes, which is not plausible: upload it again"
            )
        return data

    def fetch(self, place: str, entry: FileEntry, to: Path) -> None:
        """Write a file below the root to `to`; raises `RepositoryError` unless it equals the manifest entry."""
        digest, left = hashlib.sha256(), entry.bytes
        path = f"{self._root}/{place}"
        with self._reading(place), self._files.open(path, "rb") as source, to.open("wb") as target:
            while left >= 0 and (piece := source.read(min(PIECE_BYTES, left + 1))):
                left -= len(piece)
                digest.update(piece)
                target.write(piece)
        if left != 0 or digest.hexdigest() != entry.sha256:
            raise RepositoryError(
                f"{self.shown}/{place} differs from the manifest: it was changed or only partly uploaded; "
                "upload it again"
            )

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turn any exception of a driver into one error, without credentials."""
        try:
            yield
        except Exception as error:
            message = CREDENTIALS.sub("", f"{type(error).__name__}: {error}")
            raise RepositoryError(f"{self.shown} cannot be read ({what}: {message})") from error


def arrange(files: Mapping[str, int], root: str) -> RemoteListing:
    """Arrange files by their paths below the root. Only plain names are accepted, so none leads elsewhere."""
    plain = {place: size for place, size in files.items() if all(map(NAME.fullmatch, place.split("/")))}
    folders = [place.rpartition("/")[0] for place in plain if place.rpartition("/")[2] == MANIFEST]
    folders = [""] if "" in folders else folders  # the root is itself a model
    tops = {folder: named for folder in folders if (named := _named(folder, root)) is not None}
    within: dict[str, dict[str, int]] = {folder: {} for folder in tops}
    for place, size in plain.items():
        parts = place.split("/")
        for count in range(max(0, len(parts) - 2), len(parts)):  # `NAME` or `caches/NAME` in a model directory
            if (folder := "/".join(parts[:count])) in within:
                within[folder]["/".join(parts[count:])] = size
    found = {named: RemoteVersion(*named, folder, within[folder]) for folder, named in sorted(tops.items())}
    queries = tuple(place for place in plain if "/" not in place and place.endswith(ENDING))
    return tuple(found.values()), queries


def _named(folder: str, root: str) -> tuple[str, str] | None:
    """Return the name and version of the model in a folder, None if it cannot be one.

    A model without a folder for its version counts as version 1, unless there is another one (`sorted` puts it last).
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


logger = logging.getLogger(__name__)

LOCK = ".lock"
MAX_QUERY_BYTES = 1 << 20
UNFINISHED = re.compile(r"\.[0-9]{1,18}\..+")  # what a killed process has left of a version


class Mirror:
    """Keeps `folder` equal to the remote store, for a repository of at most `most` bytes."""

    def __init__(self, remote: Remote, folder: Path, *, most: int) -> None:
        self.folder = folder
        self._remote = remote
        self._most = most

    def refresh(self, names: Sequence[str] = ()) -> None:
        """Fetch what has changed of these models and queries, by default of all; remove what the store has removed.

        A version that is incomplete in the store is logged and left unchanged here. Raises `RepositoryError` if the
        store cannot be read or holds too much; then nothing is changed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # against other processes; released however this one ends
            there, queries_there = self._remote.look()
            if not there:
                raise RepositoryError(f"{self._remote.shown} contains no model: upload what `latebind build` made")
            self._fetch_queries(queries_there)
            queries = find_queries(self.folder, names) if names else []
            wanted = {*names, *(model for path in queries for model in model_names(path))}  # with none, all are
            versions = [found for found in there if not wanted or found.name in wanted]
            whole = [(found, manifest) for found in versions if (manifest := self._manifest(found))]
            held = _bytes(manifest for _, manifest in whole)
            if held > self._most:
                raise RepositoryError(
                    f"{self._remote.shown} holds {held} bytes to be served and {self._most} are allowed: "
                    "raise --cache-size, name models with --model, or remove old versions from it"
                )
            new = [(found, manifest) for found, manifest in whole if self._local_manifest(found) != manifest]
            fetched, free = _bytes(manifest for _, manifest in new), shutil.disk_usage(self.folder).free
            if fetched > free:
                raise RepositoryError(
                    f"{self.folder} has {free} bytes free and {fetched} are to be fetched: make room or give another "
                    "--cache"
                )
            for found, manifest in new:
                self._fetch(found, manifest)
            self._drop(there, queries_there)

    def _fetch_queries(self, names: Iterable[str]) -> None:
        for name in names:
            data = self._remote.read(name, MAX_QUERY_BYTES)
            path = self.folder / name
            if not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)

    def _manifest(self, found: RemoteVersion) -> Manifest | None:
        """Return the manifest of a version if it is complete in the store, else None."""
        place = found.at(MANIFEST)
        try:
            manifest = manifest_in(self._remote.read(place, MAX_MANIFEST_BYTES), f"{self._remote.shown}/{place}")
        except RepositoryError as error:
            logger.error("%s version %s was not changed: %s", found.name, found.version, error)
            return None
        for name, entry in manifest.files.items():
            if found.files.get(name) != entry.bytes:
                logger.warning("%s version %s is not complete yet: %s is missing", found.name, found.version, name)
                return None
        return manifest

    def _local_manifest(self, found: RemoteVersion) -> Manifest | None:
        """Return the manifest of a version here, None if files are missing or truncated."""
        path = self._path(found)
        try:
            manifest = read_manifest(path)
            whole = all((path / name).stat().st_size == entry.bytes for name, entry in manifest.files.items())
        except (RepositoryError, OSError):
            return None
        return manifest if whole else None

    def _fetch(self, found: RemoteVersion, manifest: Manifest) -> None:
        """Fetch a version and make it appear."""
        logger.info("fetching %s version %s, %d bytes", found.name, found.version, _bytes([manifest]))
        files: dict[str, Writer] = {
            name: partial(self._remote.fetch, found.at(name), entry) for name, entry in manifest.files.items()
        }
        try:
            ModelDirectory.create(self._path(found), files)
        except RepositoryError as error:
            logger.error("%s version %s was not changed: %s", found.name, found.version, error)

    def _drop(self, versions: Iterable[RemoteVersion], queries: Collection[str]) -> None:
        """Remove versions and queries that the store no longer has, and unfinished ones here."""
        kept = {self._path(found) for found in versions}
        for listed in Repository(self.folder).models():
            if listed.path not in kept:
                listed.path.rename(aside := listed.path.with_name(f".{listed.version}.gone"))
                shutil.rmtree(aside, ignore_errors=True)
        for path in find_queries(self.folder):
            if path.name not in queries:
                path.unlink()
        for left in self.folder.glob("*/.*"):
            if UNFINISHED.fullmatch(left.name):
                shutil.rmtree(left, ignore_errors=True)

    def _path(self, found: RemoteVersion) -> Path:
        return self.folder / found.name / found.version


class MirroredSelection(Selection):
    """The served part of a remote repository. The mirror is refreshed when names are listed, and by `fresh`."""

    def __init__(self, mirror: Mirror, names: Sequence[str] = (), splits: Sequence[Split] = ()) -> None:
        super().__init__(mirror.folder, names, splits)
        self._mirror = mirror

    def first(self) -> Serving:
        """Return everything to be served; if the store cannot be read, what was fetched before."""
        self._refresh_at_first()
        return super().first()

    def first_whole(self) -> tuple[Serving, dict[str, LatebindError | OSError]]:
        """Return the intact part of that, and by name what is wrong with the rest."""
        self._refresh_at_first()
        return super().first_whole()

    def names(self) -> tuple[str, ...]:
        """Return the current names; raises `RepositoryError` if the store cannot be read."""
        self._refresh(needed=True)
        return super().names()

    def fresh(self, name: str, version: str | None = None) -> Serving:
        """Return what `find` returns, refreshed; if the store cannot be read, as it was fetched before."""
        self._refresh(needed=False)
        return super().fresh(name, version)

    def versions_of(self, split: Split) -> Serving:
        """Return what `Selection` does, refreshed; if the store cannot be read, as it was fetched before."""
        self._refresh(needed=False)
        return super().versions_of(split)

    def _refresh_at_first(self) -> None:
        self._refresh(needed=not (self.place.is_dir() and Repository(self.place).models()))

    def _refresh(self, *, needed: bool) -> None:
        try:
            self._mirror.refresh(self._names)
        except RepositoryError as error:
            if needed:
                raise
            logger.error("%s: using what was fetched before", error)


def open_selection(place: str, names: Sequence[str], config: RepositoryConfig) -> Selection:
    """Return the part of a repository that is served, in a folder or at a URL. Raises `ConfigError`."""
    if "://" not in place:
        return Selection(Path(place), names, config.splits())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "latebind" / "repositories"
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", place.rstrip("/").rpartition("/")[2]).strip(".-")[:64]
    folder = f"{last or 'models'}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"  # each URL has its own
    mirror = Mirror(Remote(place), Path(config.cache or home) / folder, most=config.most)
    return MirroredSelection(mirror, names, config.splits())


def _bytes(manifests: Iterable[Manifest]) -> int:
    return sum(entry.bytes for manifest in manifests for entry in manifest.files.values())
