"""The manifest of a model directory: its files with size and sha256, checked before anything is read."""

import hashlib
import re
from pathlib import Path

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
    """Return the manifest of `directory`; raises `RepositoryError` if it is missing, broken or has invalid paths."""
    path = directory / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise RepositoryError(f"{path} is missing: this is not a model directory, make one with `latebind build`")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise RepositoryError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: build the model again")
    return manifest_in(path.read_bytes(), str(path))


def manifest_in(data: bytes, place: str) -> Manifest:
    """Return the manifest in `data`; raises `RepositoryError` naming `place` if it is broken or has invalid paths."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RepositoryError(f"{place} is broken ({error}): build the model again") from error
    if manifest.format != FORMAT:
        raise RepositoryError(f"{place} has format {manifest.format}, this version reads {FORMAT}: build it again")
    for name in manifest.files:
        check_file_name(name)
    return manifest


def manifest_bytes(files: dict[str, FileEntry]) -> bytes:
    """Return the manifest of these files, sorted by name."""
    ordered = dict(sorted(files.items()))
    return msgspec.json.format(msgspec.json.encode(Manifest(FORMAT, ordered)), indent=1) + b"\n"


def check_file_name(name: str) -> None:
    """Raise `RepositoryError` unless `name` is one or two plain names with a slash between them."""
    parts = name.split("/")
    if len(parts) > 2 or not all(NAME.fullmatch(part) for part in parts):
        raise RepositoryError(
            f"{name[:200]!r} is no file name of a model directory: use letters, digits, '.', '_', '-', at most one '/'"
        )


def entry_of(data: bytes) -> FileEntry:
    """Return the manifest entry of a file that holds `data`."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def entry_of_file(path: Path) -> FileEntry:
    """Return the manifest entry of a file that has been written."""
    return FileEntry(path.stat().st_size, _sha256(path))


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
            raise RepositoryError(f"{path} is a link that leads out of the model directory: put the file itself there")
        if path.stat().st_size != entry.bytes or _sha256(path) != entry.sha256:
            raise RepositoryError(f"{path} differs from the manifest: it was altered or half copied, build it again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
