"""A file of a model as memory that is loaded and released page by page. Linux only; knows nothing of tensors.

The file is mapped once, which takes no memory; only pages that are present do. Users hold pages: the first holder has
them read, and when the last one releases them they are freed at once. A page that is read while nobody holds it is
loaded by the kernel and freed with the next release.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.repository.directory import ModelDirectory

PAGE = mmap.PAGESIZE
MADV_DONTNEED = 4
MADV_NOHUGEPAGE = 15
MADV_POPULATE_READ = 22  # Linux 5.14: reads pages ahead of use, and returns an error instead of raising a signal

Runs = tuple[range, ...]  # runs of pages, ascending and disjoint


@dataclass(frozen=True, slots=True)
class BytesRead:
    """Bytes that were made present, and how many of them were in the page cache before."""

    size: int = 0
    cached: int = 0

    def __add__(self, other: "BytesRead") -> "BytesRead":
        return BytesRead(self.size + other.size, self.cached + other.cached)


class MappedFile:
    """A listed file of a model directory, checked against the manifest and mapped, with no page present yet.

    Unless `cached`, released pages leave the page cache too: their memory is free, and the next holder reads the disk.
    For one thread at a time, while others may read pages that are held. Raises `RepositoryError` for a file that
    differs from the manifest, `ConfigError` if the system has no such mapping.
    """

    def __init__(self, directory: ModelDirectory, name: str, *, cached: bool = True) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError("a bound on memory needs Linux, which gives pages of files back: serve without --memory")
        self.path = directory.path / name
        self._file = self.path.open("rb")
        if hashlib.file_digest(self._file, "sha256").hexdigest() != directory.files[name].sha256:
            raise RepositoryError(f"{self.path} differs from the manifest: it was altered, build the model again")
        self._stays_cached = cached
        self._known = self._stamp()
        self.memory = mmap.mmap(self._file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self._holders = np.zeros(-(-len(self.memory) // PAGE), np.int16)
        # A huge page would be unmapped whole though parts are held. Kernels without huge pages refuse; they need not.
        with suppress(OSError):
            self._advise(range(len(self._holders)), MADV_NOHUGEPAGE)

    def runs(self, spans: Iterable[tuple[int, int]]) -> Runs:
        """Return the pages that hold these spans of bytes (first, end)."""
        found: list[range] = []
        for first, end in sorted((first // PAGE, -(-end // PAGE)) for first, end in spans if first < end):
            if found and first <= found[-1].stop:
                found[-1] = range(found[-1].start, max(end, found[-1].stop))
            else:
                found.append(range(first, end))
        return tuple(found)

    def hold(self, runs: Runs) -> BytesRead:
        """Make pages present until they are released as often as they were held.

        Releases Python's lock while it reads. Raises `RepositoryError` if the file was altered or cannot be read; then
        none of the pages is held.
        """
        if self._stamp() != self._known:
            raise RepositoryError(f"{self.path} was altered while it is served: restore it and restart the server")
        read = BytesRead(PAGE * sum(map(len, runs)), PAGE * sum(map(self._cached, runs)))
        self._count(runs, 1)
        try:
            for run in runs:
                self._populate(run)
        except OSError as error:
            self.release(runs)
            raise RepositoryError(f"{self.path} cannot be read ({error.strerror}): look after the disk") from error
        self._drop()  # the kernel maps neighbouring pages as well
        return read

    def release(self, runs: Runs) -> None:
        """Free those of these pages that have no holder left."""
        self._count(runs, -1)
        self._drop()

    def _stamp(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _count(self, runs: Runs, more: int) -> None:
        for run in runs:
            self._holders[run.start : run.stop] += more

    def _cached(self, run: range) -> int:
        """Return how many pages of a run are in the page cache.

        Linux reports all pages as cached to a user who may not write to the file.
        """
        found: NDArray[np.uint8] = np.zeros(len(run), np.uint8)
        _call("mincore", self._address + run.start * PAGE, len(run) * PAGE, found.ctypes.data)
        return int((found & 1).sum())

    def _populate(self, run: range) -> None:
        try:
            self._advise(run, MADV_POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:  # older kernels do not know it
                raise
            np.frombuffer(self.memory, np.uint8)[run.start * PAGE : run.stop * PAGE : PAGE].max()

    def _drop(self) -> None:
        """Free every page without a holder."""
        for run in _zeros(self._holders):
            self._advise(run, MADV_DONTNEED)
            if not self._stays_cached:
                os.posix_fadvise(self._file.fileno(), run.start * PAGE, len(run) * PAGE, os.POSIX_FADV_DONTNEED)

    def _advise(self, run: range, advice: int) -> None:
        _call("madvise", self._address + run.start * PAGE, len(run) * PAGE, advice)


def _zeros(counts: NDArray[np.int16]) -> Sequence[range]:
    """Return the runs of indices whose count is 0."""
    edges = np.flatnonzero(np.diff(counts == 0, prepend=False, append=False)).tolist()
    return [range(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _call(name: str, address: int, size: int, argument: int) -> None:
    """Call a memory function of the C library; raises `OSError`. Python's lock is released meanwhile."""
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    if function(address, size, argument):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
