"""Versions of a model's learned caches on disk: each a verified directory, created by one rename; one is current.

Several services may share the folder. One of them leads: it makes versions, and all use what it makes current.
"""

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from latebind.adaptation.controller import BUILT, FULL_DEPTH, Version, VersionLevel
from latebind.domain.costs import are_seconds
from latebind.domain.errors import NotFound, RepositoryError
from latebind.learned.metadata import LIST, head_file
from latebind.repository.directory import ModelDirectory, json_bytes, write_bytes
from latebind.repository.tensors import tensor_bytes

if TYPE_CHECKING:
    from latebind.learned.head import Head

FORMAT = 2
ABOUT = "version.json"
CURRENT = "current"
BY_HAND = "by-hand"
LEADER = "leader"
KEPT = 20
OLD = ".old"  # ends the hidden name of a version that is being removed
NAME = re.compile(r"[0-9]{6}|[1-9][0-9]{6,8}")
LATEST = 4e9  # seconds since the epoch: the year 2096


class _OfOtherCaches(RepositoryError):
    """A version was made for caches that have been replaced since."""


class Versions:
    """All versions for the caches of one model directory, in a folder of their own."""

    def __init__(self, folder: Path, model: ModelDirectory) -> None:
        self._folder = folder
        self.base = model.files[LIST].sha256  # what versions made now belong to

    def names(self) -> list[str]:
        """Return all versions that are there, oldest first."""
        folder = self._folder / "versions"
        return sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder.is_dir() else []

    def publish(self, version: Version, heads: Mapping[str, "Head"], *, known: Collection[str] = ()) -> Version:
        """Write a version and return it with its name; it is not current yet. The oldest are removed, `known` ones not.

        None is ever replaced: if another service has just taken the name, the next one is used.
        """
        version = replace(version, format=FORMAT, base=version.base or self.base)
        while True:
            names = self.names()
            version = replace(version, name=f"{int(names[-1]) + 1 if names else 1:06d}")
            files = {ABOUT: json_bytes(version)}
            files |= {_file(lookup): tensor_bytes(head.tensors()) for lookup, head in heads.items()}
            with suppress(FileExistsError):
                ModelDirectory.create(self._path(version.name), files, replace=False)
                break
        self._remove([old for old in names[: -KEPT + 1] if old != self.current() and old not in known])
        return version

    def version(self, name: str) -> Version:
        """Return what a version does; raises `NotFound`, or `RepositoryError` for one of other caches.

        The traffic for which it was made is no longer known (`current` is 0).
        """
        version = self._open(name).read_json(ABOUT, Version)
        if version.format != FORMAT or version.base != self.base:
            raise _OfOtherCaches(f"version {name} in {self._folder} belongs to other caches: it cannot be used here")
        if not _can_be(version):
            raise RepositoryError(f"{self._path(name) / ABOUT} has implausible figures: use another version")
        return replace(version, name=name, current=0)

    def lookups(self, name: str) -> dict[str, tuple["Head", float]]:
        """Return head and threshold of each lookup of a version by the lookup's name; errors as `version`."""
        from latebind.learned.stored import read_head  # noqa: PLC0415  (not needed to list versions)

        levels, directory = self.version(name).thresholds, self._open(name)
        return {lookup: (read_head(directory, _file(lookup)), level) for lookup, level in levels.items()}

    def levels(self, name: str, target: float) -> dict[float, dict[str, float]]:
        """Return the thresholds of each level that a version has, by its fidelity; errors as `version`.

        One that was made without a floor has one level, the `target` that its caches were calibrated for.
        """
        version = self.version(name)
        return {level.fidelity: level.thresholds for level in version.levels} or {target: version.thresholds}

    def current(self) -> str:
        """Return the version that was chosen, `BUILT` if none was; reading it shows whether it can be used.

        Raises `OSError`: a folder that cannot be read for a moment does not mean that nothing was chosen.
        """
        return self._chosen()[0]

    def first(self) -> tuple[str, str]:
        """Return the version to begin with, and, if it is not the current one, why.

        It is what `build` made if the current one belongs to other caches, and the whole network if it cannot be read:
        it may have replaced what `build` made for a reason.
        """
        try:
            name = self.current()
            if name not in {BUILT, FULL_DEPTH}:
                self.lookups(name)
        except _OfOtherCaches as error:
            return BUILT, str(error)
        except (NotFound, RepositoryError, OSError) as error:
            return FULL_DEPTH, f"{error}; choose another with `latebind versions --use`"
        return name, ""

    def stopped(self) -> bool:
        """Return whether an operator has stopped exits, which stays until something else is chosen."""
        return self._chosen() == (FULL_DEPTH, BY_HAND)

    def make_current(self, name: str, *, by_hand: bool = False) -> None:
        """Use this version from now on; raises `NotFound` for one that does not exist."""
        if name not in {BUILT, FULL_DEPTH}:
            self.version(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        chosen = f"{name} {BY_HAND if by_hand else ''}\n".encode("ascii")
        write_bytes(self._folder / CURRENT, chosen, ending=f"{socket.gethostname()}-{os.getpid()}")

    def _chosen(self) -> tuple[str, str]:
        """Return what was chosen and whether by hand."""
        try:
            written = (self._folder / CURRENT).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return BUILT, ""
        name, _, how = written.strip().partition(" ")
        return name, how

    def _remove(self, names: Sequence[str]) -> None:
        """Remove versions, each in one rename; another service may be removing the same ones."""
        for name in names:
            with suppress(FileNotFoundError):
                self._path(name).rename(self._path(f".{name}{OLD}"))
        for rest in self._path("").glob(f".*{OLD}"):  # also what a crash has left over
            shutil.rmtree(rest, ignore_errors=True)

    def _open(self, name: str) -> ModelDirectory:
        # the folder itself is checked: lists of a shared folder may be outdated
        if not NAME.fullmatch(name) or not self._path(name).is_dir():
            there = ", ".join([BUILT, FULL_DEPTH, *self.names()])
            raise NotFound(f"there is no version {name!r:.40} in {self._folder}; there are: {there}")
        return ModelDirectory.open(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / "versions" / name


class Leadership:
    """Which of the services that share a folder leads: the one that holds the lock on a file in it.

    The kernel releases the lock when its process ends, however it ends, and a file system that machines share does so
    when a machine is gone (NFS after its lease, usually 90 seconds). A leader that hangs stays the leader: the others
    go on with the existing versions, and each still stops its own exits.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEADER
        self._file: int | None = None

    def held(self) -> bool:
        """Return whether this service leads, and take the lead if none does. Raises `OSError` without locks."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(file)
                if not isinstance(error, BlockingIOError):
                    raise
            else:
                self._file = file
        return self._file is not None

    def release(self) -> None:
        """Let another service lead."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def versions_folder(model: Path, root: str = "") -> Path:
    """Return where versions of a model directory are: beside it, or in a folder of their own under `root`."""
    place = Path(root) / model.parent.name if root else model.parent
    return place / f".adapted-{model.name}"


def _can_be(version: Version) -> bool:
    """Return whether its figures are plausible."""
    return (
        0.0 <= version.made < LATEST
        and len(version.thresholds) > 0
        and all(map(isfinite, version.thresholds.values()))
        and all(map(are_seconds, version.seconds))
        and len(version.seconds) == len(version.wrong) > 0
        and all(0.0 <= share <= 1.0 for share in (*version.wrong, *version.mix.values()))
        and all(0 <= answer < len(version.wrong) for answer in version.mix)
        and all(_is_level_of(version, level) for level in version.levels)
        and [level.fidelity for level in version.levels]
        == sorted({level.fidelity for level in version.levels}, reverse=True)
    )


def _is_level_of(version: Version, level: VersionLevel) -> bool:
    """Return whether a level can belong to this version: of lookups in use, with plausible figures."""
    return (
        all(0.0 <= share <= 1.0 for share in (level.fidelity, level.lower, *level.wrong))
        and len(level.thresholds) > 0
        and level.thresholds.keys() <= version.thresholds.keys()
        and all(map(isfinite, level.thresholds.values()))
        and len(level.wrong) == len(version.wrong)
    )


def _file(lookup: str) -> str:
    return head_file(lookup).partition("/")[2]
