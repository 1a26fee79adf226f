"""Versions of a model's learned caches on disk: each a verified directory, made in one rename; one is current."""

import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.domain.costs import are_seconds
from latebind.domain.errors import NotFound, RepositoryError
from latebind.learned.head import Head
from latebind.learned.stored import LIST, head_file, read_head
from latebind.repository.directory import ModelDirectory, json_bytes, write_bytes
from latebind.repository.tensors import tensor_bytes

FORMAT = 2
ABOUT = "version.json"
CURRENT = "current"
BY_HAND = "by-hand"
KEPT = 20
OLD = ".old"  # ends the hidden name of a version that is being removed
NAME = re.compile(r"[0-9]{6}|[1-9][0-9]{6,8}")
LATEST = 4e9  # seconds since the epoch: the year 2096
LEFT_BEHIND = 600.0  # seconds after which a hidden folder is nobody's work any more


@dataclass(frozen=True, slots=True)
class About:
    """What a version is and what was shown of it.

    `made` is in seconds since the epoch, `base` the sha256 of the caches it belongs to; `thresholds` are by the name of
    a lookup, `wrong` and `seconds` by class, `mix` the shares of classes that it was made for. `lower` bounds its
    fidelity with `confidence`, on `rows` samples.
    """

    format: int
    made: float
    base: str
    reason: str
    thresholds: dict[str, float]
    fidelity: float
    lower: float
    confidence: float
    rows: int
    wrong: tuple[float, ...]
    seconds: tuple[float, ...]
    mix: dict[int, float]


class _OfOtherCaches(RepositoryError):
    """A version was made for caches that have been replaced since."""


class Versions:
    """All versions for the caches of one model directory, in a folder of their own."""

    def __init__(self, folder: Path, model: ModelDirectory) -> None:
        self._folder = folder
        self._base = model.files[LIST].sha256

    @property
    def base(self) -> str:
        """What versions made now belong to."""
        return self._base

    def names(self) -> list[str]:
        """Return all versions that are there, oldest first."""
        folder = self._folder / "versions"
        return sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder.is_dir() else []

    def publish(self, about: About, heads: Mapping[str, Head], *, known: Collection[str] = ()) -> str:
        """Write a version and return its name; it is not current yet. The oldest ones go, those `known` stay.

        None is ever replaced: where another service has just taken the name, the next one is taken.
        """
        files = {ABOUT: json_bytes(about)}
        files |= {_file(lookup): tensor_bytes(head.tensors()) for lookup, head in heads.items()}
        name = None
        while name is None:
            names = self.names()
            name = self._create(f"{int(names[-1]) + 1 if names else 1:06d}", files)
        self._remove([name for name in names[: -KEPT + 1] if name != self.current() and name not in known])
        return name

    def about(self, name: str) -> About:
        """Return what a version is; raises `NotFound`, or `RepositoryError` for one of other caches."""
        about = self._open(name).read_json(ABOUT, About)
        if about.format != FORMAT or about.base != self._base:
            raise _OfOtherCaches(f"version {name} in {self._folder} belongs to other caches: it cannot be used here")
        if not _makes_sense(about):
            raise RepositoryError(
                f"{self._path(name) / ABOUT} has figures that nobody can have measured: use another version"
            )
        return about

    def lookups(self, name: str) -> dict[str, tuple[Head, float]]:
        """Return head and threshold of each lookup of a version by the lookup's name; errors as `about`."""
        about, directory = self.about(name), self._open(name)
        return {lookup: (read_head(directory, _file(lookup)), level) for lookup, level in about.thresholds.items()}

    def current(self) -> str:
        """Return the version that was chosen, `BUILT` where none was; whether it can be used shows where it is read.

        Raises `OSError`: a folder that cannot be read for a moment is no choice.
        """
        return self._chosen()[0]

    def first(self) -> tuple[str, str]:
        """Return the version to begin with, and why it is not the current one where it is another.

        It is what `build` made where the current one belongs to other caches, and the whole network where it cannot be
        read: what `build` made may be what it was to follow.
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
        """Tell whether an operator wants no exits, until he chooses something else."""
        return self._chosen() == (FULL_DEPTH, BY_HAND)

    def make_current(self, name: str, *, by_hand: bool = False) -> None:
        """Use this version from now on; raises `NotFound` for one that is not there."""
        if name not in {BUILT, FULL_DEPTH}:
            self.about(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        chosen = f"{name} {BY_HAND if by_hand else ''}\n".encode("ascii")
        write_bytes(self._folder / CURRENT, chosen, ending=f"{socket.gethostname()}-{os.getpid()}")

    def _create(self, name: str, files: Mapping[str, bytes]) -> str | None:
        try:
            ModelDirectory.create(self._path(name), files, replace=False)
        except FileExistsError:
            return None
        return name

    def _chosen(self) -> tuple[str, str]:
        """Return what was chosen and whether by hand."""
        try:
            written = (self._folder / CURRENT).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return BUILT, ""
        name, _, how = written.strip().partition(" ")
        return name, how

    def _remove(self, names: Sequence[str]) -> None:
        """Remove versions, each in one rename, and what a crash has left of such work.

        Another service may be removing the same ones, or writing a new one under a hidden name.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self._path(name).rename(self._path(f".{name}{OLD}"))
        for rest in self._path("").glob(".*"):
            if rest.suffix == OLD or _age(rest) > LEFT_BEHIND:
                shutil.rmtree(rest, ignore_errors=True)

    def _open(self, name: str) -> ModelDirectory:
        if not self._is_there(name):
            there = ", ".join([BUILT, FULL_DEPTH, *self.names()])
            raise NotFound(f"there is no version {name!r:.40} in {self._folder}; there are: {there}")
        return ModelDirectory.open(self._path(name))

    def _is_there(self, name: str) -> bool:
        """Tell whether there is such a version. It is looked at itself: lists of a shared folder may be older."""
        return bool(NAME.fullmatch(name)) and self._path(name).is_dir()

    def _path(self, name: str) -> Path:
        return self._folder / "versions" / name


def versions_folder(model: Path, root: str = "") -> Path:
    """Return where versions of a model directory lie: beside it, or in a folder of its own under `root`."""
    place = Path(root) / model.parent.name if root else model.parent
    return place / f".adapted-{model.name}"


def _makes_sense(about: About) -> bool:
    """Tell whether the figures of a version can be."""
    return (
        0.0 <= about.made < LATEST
        and len(about.thresholds) > 0
        and all(map(isfinite, about.thresholds.values()))
        and all(map(are_seconds, about.seconds))
        and len(about.seconds) == len(about.wrong)
        and all(0.0 <= share <= 1.0 for share in (*about.wrong, *about.mix.values()))
        and all(0 <= answer < len(about.wrong) for answer in about.mix)
    )


def _age(path: Path) -> float:
    """Return the seconds since a folder last changed; 0 if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _file(lookup: str) -> str:
    return head_file(lookup).partition("/")[2]
