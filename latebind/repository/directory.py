"""One model on disk, under a manifest of its files with size and sha256: only listed files are read.

A new directory appears by one rename. Changes to an existing one are first written into a hidden folder, which one
rename makes `READY`: at that moment the change has happened. Then the files move to their places, the manifest last.
Whoever opens the directory and finds `READY` moves what is left, so it does not matter when the writer was killed. (Few
systems can exchange two directories in one step, and files shared between versions would then be copied.)
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EAGAIN, EEXIST, ENOTEMPTY
from pathlib import Path
from typing import TypeVar

import msgspec

from latebind.domain.errors import RepositoryError

FORMAT = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[0-9]{1,18}")
MAX_MANIFEST_BYTES = 1 << 20


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its size in bytes and its sha256 in hexadecimal."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of a model directory by relative path (`graph.json`, `caches/stage-3.json`)."""

    format: int
    files: dict[str, FileEntry]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of `directory`; raises `RepositoryError` if it is missing, corrupt or has invalid paths."""
    path = directory / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise RepositoryError(f"{path} is missing: this is not a model directory; make one with `latebind build`")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise RepositoryError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: build the model again")
    return manifest_in(path.read_bytes(), str(path))


def manifest_in(data: bytes, place: str) -> Manifest:
    """Return the manifest in `data`; raises `RepositoryError` naming `place` if it is corrupt or has invalid paths."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{place} is invalid ({error}): build the model again") from error
    if manifest.format != FORMAT:
        raise RepositoryError(f"{place} has format {manifest.format}, and this version reads {FORMAT}: build it again")
    for name in manifest.files:
        check_file_name(name)
    return manifest


def check_file_name(name: str) -> None:
    """Raise `RepositoryError` unless `name` is one or two plain names with a slash between them."""
    parts = name.split("/")
    if len(parts) > 2 or not all(NAME.fullmatch(part) for part in parts):
        raise RepositoryError(
            f"{name[:200]!r} is not a valid file name in a model directory: use letters, digits, '.', '_', '-', at "
            "most one '/'"
        )


def entry_of(data: bytes) -> FileEntry:
    """Return the manifest entry of a file that holds `data`."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(directory: Path, manifest: Manifest) -> None:
    """Raise `RepositoryError` unless each file exists, is inside the directory, and is unaltered.

    The message names the file.
    """
    root = directory.resolve()
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise RepositoryError(
                f"{path} is missing though the manifest lists it: restore it or build the model again"
            )
        if not path.resolve().is_relative_to(root):
            raise RepositoryError(f"{path} is a link that leads out of the model directory: replace it by the file")
        if path.stat().st_size != entry.bytes or _sha256(path) != entry.sha256:
            raise RepositoryError(
                f"{path} differs from the manifest: it was changed or only partly copied; build it again"
            )


MODEL = "model.json"
GRAPH = "graph.json"
WEIGHTS = "weights.safetensors"
PROFILE = "profile.json"
SEQUENCE = "sequence.json"  # only in sequence models, which also have other graphs
CACHES = "caches"
STAGES = "stages"  # of a model whose stages OpenVINO reads by itself
READY = ".ready"  # files that are to replace others; names that continue after `READY` are still being written
MOST_JSON_BYTES = 1 << 24  # of a file that is read whole before anything in it is checked
MOST_CHANGES = 5  # that may happen while a directory is opened
PATIENCE = 10.0  # seconds that another process may take to move files to their places
LEFT_BEHIND = 60.0  # seconds after which an unlocked hidden folder counts as abandoned

T = TypeVar("T")
Writer = Callable[[Path], None]  # writes a file that is too large to be made in memory first


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A verified model directory: `path` and the entries of its manifest by file name."""

    path: Path
    files: Mapping[str, FileEntry]

    @classmethod
    def open(cls, path: Path | str) -> "ModelDirectory":
        """Verify the manifest of `path` and every file in it; raises `RepositoryError` naming the first bad file."""
        path = Path(path)
        for _ in range(MOST_CHANGES):
            _finish(path)
            manifest = read_manifest(path)
            try:
                verify(path, manifest)
            except RepositoryError:
                if not (path / READY).exists() and read_manifest(path) == manifest:
                    raise
            else:
                return cls(path, manifest.files)
        raise RepositoryError(f"{path} changes faster than it can be read: try again later")

    @classmethod
    def create(cls, path: Path | str, files: Mapping[str, bytes | Writer], *, replace: bool = True) -> "ModelDirectory":
        """Create the directory with these files, or replace an existing model there as a whole.

        Raises `FileExistsError` if not `replace` and a model exists, even one that another process has just created.
        """
        path = Path(path)
        _check_names(path, files)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RepositoryError(f"{path} is a file or a link: name another directory for the model")
        if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
            raise RepositoryError(f"{path} holds files that are not a model: name another directory or empty this one")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if replace and (path / MANIFEST).is_file():
                _change(path, files, {})
            else:
                with _staging(path.parent, f".{path.name}.") as staging:
                    _write_all(staging, files, {})
                    staging.rename(path)
                    _sync(path.parent)
        except OSError as error:
            if error.errno in {EEXIST, ENOTEMPTY}:  # another model has the name by now
                raise FileExistsError(error.errno, os.strerror(error.errno), str(path)) from None
            error.filename = error.filename or str(path)  # writes do not name the file
            raise
        return cls.open(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of the listed files in `folder` ("caches"), sorted, including the folder."""
        return tuple(sorted(name for name in self.files if name.startswith(f"{folder}/")))

    def read(self, name: str, *, most: int | None = None) -> bytes:
        """Return the bytes of a listed file, verified again; raises `RepositoryError` if it has more than `most`."""
        entry = self.files.get(name)
        if entry is None:
            raise RepositoryError(f"{self.path / name} is not in the manifest: build the model again")
        if most is not None and entry.bytes > most:
            raise RepositoryError(
                f"{self.path / name} has {entry.bytes} bytes, more than {most}: build the model again"
            )
        data = (self.path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise RepositoryError(
                f"{self.path / name} differs from the manifest: it was changed; build the model again"
            )
        return data

    def read_json(self, name: str, type_: type[T]) -> T:
        """Return a listed JSON file as `type_` (a dataclass or msgspec struct), strictly checked."""
        try:
            return msgspec.json.decode(self.read(name, most=MOST_JSON_BYTES), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RepositoryError(f"{self.path / name} is invalid ({error}): build the model again") from error

    def write_files(self, files: Mapping[str, bytes], *, remove: Iterable[str] = ()) -> "ModelDirectory":
        """Add, replace and remove files; return the directory as it is afterwards.

        A crash in between leaves either the old or the new directory.
        """
        _check_names(self.path, files)
        kept = {name: entry for name, entry in self.files.items() if name not in set(remove)}
        entries = _change(self.path, files, kept)
        return ModelDirectory(self.path, dict(sorted(entries.items())))


def json_bytes(value: object) -> bytes:
    """Return `value` (dataclasses, structs, plain values) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _check_names(path: Path, names: Iterable[str]) -> None:
    for name in names:
        check_file_name(name)
        if name == MANIFEST:
            raise RepositoryError(f"{path}: {MANIFEST} cannot list itself: give the file another name")
        if not (path / name).parent.resolve().is_relative_to(path.resolve()):
            raise RepositoryError(f"{path / name} leads out of the model directory through a link: remove the link")


def write_bytes(path: Path, content: bytes | Writer, *, ending: str = "new") -> None:
    """Write a file in one rename, so that a crash leaves the old one or the new one.

    If several processes may write it, each needs its own `ending` for the temporary file beside it.
    """
    beside = path.with_name(f".{path.name}.{ending}")
    if isinstance(content, bytes):
        beside.write_bytes(content)
    else:
        content(beside)
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)


def _write_all(
    staging: Path, files: Mapping[str, bytes | Writer], kept: Mapping[str, FileEntry]
) -> dict[str, FileEntry]:
    """Write these files, and the manifest of them and of the `kept` ones, which it returns."""
    entries = dict(kept)
    for name, content in files.items():
        path = staging / name
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, content)
        if isinstance(content, bytes):
            entries[name] = entry_of(content)
        else:
            entries[name] = FileEntry(path.stat().st_size, _sha256(path))
    write_bytes(staging / MANIFEST, json_bytes(Manifest(FORMAT, dict(sorted(entries.items())))))
    return entries


@contextmanager
def _staging(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new hidden folder, locked while its writer lives; folders of dead writers are removed."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(left, seconds=0.0) as alone:
            if alone and time.time() - left.stat().st_mtime > LEFT_BEHIND:
                shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with _locked(staging, seconds=0.0):
            staging.chmod(0o755)
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _change(path: Path, files: Mapping[str, bytes | Writer], kept: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Replace all files but the `kept` ones by these; return the entries of all."""
    with _staging(path, f"{READY}.") as staging:
        entries = _write_all(staging, files, kept)
        with _locked(path, seconds=PATIENCE):
            _move_on(path)
            staging.rename(path / READY)
            _sync(path)
            _move_on(path)
    return entries


def _finish(path: Path) -> None:
    """Complete a change whose writer was killed, or is about to complete it. Raises `RepositoryError`."""
    if not (path / READY).exists():
        return
    try:
        with _locked(path, seconds=PATIENCE):
            _move_on(path)
    except OSError as error:
        raise RepositoryError(
            f"{path} is only half replaced, and that cannot be completed ({error}): run `latebind models` on it as a "
            "user who may write there"
        ) from error


def _move_on(path: Path) -> None:
    """Move the files in `READY` to their places, the manifest last; each step may be repeated. Needs the lock."""
    ready = path / READY
    if not ready.exists():
        return
    if (ready / MANIFEST).is_file():
        before, after = read_manifest(path), read_manifest(ready)
        for name in before.files.keys() - after.files.keys():
            (path / name).unlink(missing_ok=True)
            if (path / name).parent != path:
                with suppress(OSError):  # it has other files
                    (path / name).parent.rmdir()
    for file in sorted(ready.rglob("*")):
        if file.is_file() and file != ready / MANIFEST:
            place = path / file.relative_to(ready)
            place.parent.mkdir(exist_ok=True)
            file.replace(place)
            _sync(place.parent)
    if (ready / MANIFEST).is_file():
        (ready / MANIFEST).replace(path / MANIFEST)
        _sync(path)
    shutil.rmtree(ready)


@contextmanager
def _locked(path: Path, *, seconds: float) -> Iterator[bool]:
    """Lock a folder against other processes; the lock is released however this process ends.

    Yields whether it is locked: if folders cannot be (NFS), the work goes on, because two writers rarely change one at
    the same time. Raises `OSError` if another process holds the lock for longer than `seconds`.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    until, locked = time.monotonic() + seconds, False
    try:
        while not locked:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise TimeoutError(EAGAIN, "another process has held its lock for too long", str(path)) from None
                time.sleep(0.01)
            except OSError:
                break
        yield locked
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
