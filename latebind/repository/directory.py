"""One model on disk. Reads only files that the manifest lists; a crash while writing never leaves a mixture."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from typing import TypeVar

import msgspec

from latebind.domain.errors import RepositoryError
from latebind.repository.manifest import (
    MANIFEST,
    FileEntry,
    check_file_name,
    entry_of,
    entry_of_file,
    manifest_bytes,
    read_manifest,
    verify,
)

MODEL = "model.json"
GRAPH = "graph.json"
WEIGHTS = "weights.safetensors"
PROFILE = "profile.json"
SEQUENCE = "sequence.json"  # only in sequence models, which also have other graphs
CACHES = "caches"

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
        manifest = read_manifest(path)
        verify(path, manifest)
        return cls(path, manifest.files)

    @classmethod
    def create(cls, path: Path | str, files: Mapping[str, bytes | Writer], *, replace: bool = True) -> "ModelDirectory":
        """Make the directory with these files, or replace a former model there, in one rename.

        Raises `FileExistsError` if not `replace` and a model is there, even one that another process has just made.
        """
        path = Path(path)
        _check_names(path, files)
        _check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            staging.chmod(0o755)
            entries = {name: _write(staging, name, data) for name, data in files.items()}
            write_bytes(staging / MANIFEST, manifest_bytes(entries))
            _swap(staging, path, replace=replace)
        except OSError as error:
            error.filename = error.filename or str(path)  # writes do not name the file
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return cls.open(path)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of the listed files in `folder` ("caches"), sorted, including the folder."""
        return tuple(sorted(name for name in self.files if name.startswith(f"{folder}/")))

    def read(self, name: str) -> bytes:
        """Return the bytes of a listed file, verified again."""
        entry = self.files.get(name)
        if entry is None:
            raise RepositoryError(f"{self.path / name} is not in the manifest: build the model again")
        data = (self.path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise RepositoryError(
                f"{self.path / name} differs from the manifest: it was altered, build the model again"
            )
        return data

    def read_json(self, name: str, type_: type[T]) -> T:
        """Return a listed JSON file as `type_` (a dataclass or msgspec struct), strictly checked."""
        try:
            return msgspec.json.decode(self.read(name), type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RepositoryError(f"{self.path / name} is broken ({error}): build the model again") from error

    def write_files(self, files: Mapping[str, bytes], *, remove: Iterable[str] = ()) -> "ModelDirectory":
        """Add or replace files, then the manifest; return the directory as it is afterwards.

        Data is written beside the old files and renamed into place, the manifest last. A crash in between leaves files
        that `open` refuses by name, never a mixture that it accepts.
        """
        _check_names(self.path, files)
        entries = {name: entry for name, entry in self.files.items() if name not in set(remove)}
        entries |= {name: _write(self.path, name, data) for name, data in files.items()}
        write_bytes(self.path / MANIFEST, manifest_bytes(entries))
        for name in set(self.files) - set(entries):
            (self.path / name).unlink(missing_ok=True)
        return ModelDirectory(self.path, dict(sorted(entries.items())))


def json_bytes(value: object) -> bytes:
    """Return `value` (dataclasses, structs, plain values) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _check_replaceable(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RepositoryError(f"{path} is a file or a link: name another directory for the model")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise RepositoryError(f"{path} holds files that are not a model: name another directory or empty this one")


def _check_names(path: Path, names: Iterable[str]) -> None:
    for name in names:
        check_file_name(name)
        if name == MANIFEST:
            raise RepositoryError(f"{path}: {MANIFEST} cannot list itself; give the file another name")
        if not (path / name).parent.resolve().is_relative_to(path.resolve()):
            raise RepositoryError(f"{path / name} leads out of the model directory through a link: remove the link")


def _write(directory: Path, name: str, content: bytes | Writer) -> FileEntry:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, bytes):
        write_bytes(path, content)
        return entry_of(content)
    _write_beside(path, content, "new")
    return entry_of_file(path)


def write_bytes(path: Path, data: bytes, *, ending: str = "new") -> None:
    """Write a file in one rename, so that a crash leaves the old one or the new one.

    If several processes may write it, each needs its own `ending` for the temporary file beside it.
    """

    def write(beside: Path) -> None:
        beside.write_bytes(data)

    _write_beside(path, write, ending)


def _write_beside(path: Path, write: Writer, ending: str) -> None:
    beside = path.with_name(f".{path.name}.{ending}")
    write(beside)
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)


def _swap(staging: Path, path: Path, *, replace: bool) -> None:
    """Move `staging` to `path`; a former model there is moved aside first and deleted last."""
    if not replace:
        _rename_new(staging, path)
    elif not path.exists():
        staging.rename(path)
    else:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        path.rename(aside / path.name)
        staging.rename(path)
        shutil.rmtree(aside)
    _sync(path.parent)


def _rename_new(staging: Path, path: Path) -> None:
    """Rename a directory; raises `FileExistsError` if another that is not empty has the name."""
    try:
        staging.rename(path)
    except OSError as error:
        if error.errno not in {EEXIST, ENOTEMPTY}:
            raise
        raise FileExistsError(error.errno, os.strerror(error.errno), str(path)) from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
