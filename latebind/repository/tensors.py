"""Tensors in a model directory: safetensors files, which hold only numbers, read whole or mapped page by page.

Torch is imported only when tensors are asked for. bfloat16, which numpy does not have, is an array of its bits.

A mapped file takes no memory; only pages that are present do (Linux only). Users hold pages: the first holder causes
them to be read, and when the last one releases them they are freed at once. A page that is read while none holds it is
loaded by the kernel and freed with the next release.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError, RepositoryError
from latebind.domain.model import ITEM_BYTES
from latebind.repository.directory import ModelDirectory, Writer

if TYPE_CHECKING:
    from torch import Tensor

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
            raise ConfigError("a memory limit needs Linux, which can release pages of files: serve without --memory")
        self.path = directory.path / name
        self._file = self.path.open("rb")
        if hashlib.file_digest(self._file, "sha256").hexdigest() != directory.files[name].sha256:
            raise RepositoryError(f"{self.path} differs from the manifest: it was changed; build the model again")
        self._stays_cached = cached
        self._known = self._stamp()
        self.memory = mmap.mmap(self._file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self._holders = np.zeros(-(-len(self.memory) // PAGE), np.int16)
        # A huge page would be unmapped whole even if parts are held. Kernels without huge pages refuse, which is fine.
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

        Releases the GIL while it reads. Raises `RepositoryError` if the file was altered or cannot be read; then none
        of the pages is held.
        """
        if self._stamp() != self._known:
            raise RepositoryError(f"{self.path} was changed while it is served: restore it and restart the server")
        read = BytesRead(PAGE * sum(map(len, runs)), PAGE * sum(map(self._cached, runs)))
        self._count(runs, 1)
        try:
            for run in runs:
                self._populate(run)
        except OSError as error:
            self.release(runs)
            raise RepositoryError(f"{self.path} cannot be read ({error.strerror}): check the disk") from error
        self._drop()  # the kernel maps neighboring pages as well
        return read

    def release(self, runs: Runs) -> None:
        """Free these pages, except those that still have a holder."""
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
            if error.errno != errno.EINVAL:  # older kernels do not support it
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
    """Call a memory function of the C library, without the GIL; raises `OSError`."""
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    if function(address, size, argument):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


HEADER = 8  # bytes that hold the length of the description, which precedes the numbers
MOST_HEADER = 8 << 20  # bytes of the description
ALIGNMENT = 64
ROUNDED = 16  # bytes; the allocator's blocks begin at multiples of this
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BITS = {"bfloat16": "uint16"}  # numpy's substitute for a dtype that it lacks

Array = NDArray[Any]


def read_arrays(directory: ModelDirectory, name: str) -> dict[str, Array]:
    """Return all tensors of a listed safetensors file as arrays; raises `RepositoryError` if it is not one."""
    return {name: array for name, (array, _) in _read(directory, name).items()}


def read_tensors(directory: ModelDirectory, name: str) -> dict[str, "Tensor"]:
    """Return all tensors of a listed safetensors file; raises `RepositoryError` if it is not one."""
    return {name: _tensor(array, dtype) for name, (array, dtype) in _read(directory, name).items()}


def _read(directory: ModelDirectory, name: str) -> dict[str, tuple[Array, str]]:
    """Return the arrays of a listed file, each in memory of its own, and their dtypes."""
    try:
        data = directory.read(name)
        start, described = _described(data)
        return {one: (_view(data, start, found).copy(), DTYPES[found.dtype]) for one, found in described.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, ValueError) as error:
        raise RepositoryError(
            f"{directory.path / name} is not a safetensors file ({error!s:.200}): build it again"
        ) from error


def _view(data: bytes | mmap.mmap, start: int, found: "_Described") -> Array:
    dtype = np.dtype(BITS.get(DTYPES[found.dtype], DTYPES[found.dtype]))
    first, count = start + found.data_offsets[0], prod(found.shape)
    flat = np.frombuffer(data, dtype, count, first) if count else np.empty(0, dtype)
    return flat.reshape(found.shape)


def _tensor(array: Array, dtype: str) -> "Tensor":
    import torch  # noqa: PLC0415

    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if dtype == "bfloat16" else found


def check_weights(directory: ModelDirectory, name: str, graph_weights: Iterable[str], there: Collection[str]) -> None:
    """Raise `RepositoryError` if a listed file, which has the tensors `there`, lacks one that a graph names."""
    lacking = next((weight for weight in graph_weights if weight not in there), None)
    if lacking is not None:
        raise RepositoryError(
            f"{directory.path / name} lacks the weight {lacking!r:.100}, which a graph names: build the model again"
        )


def tensor_bytes(tensors: Mapping[str, "Tensor | Array"]) -> bytes:
    """Return tensors or arrays as the bytes of a safetensors file, laid out as by `tensor_file`."""
    return b"".join(_laid_out(tensors))


def tensor_file(tensors: Mapping[str, "Tensor | Array"]) -> Writer:
    """Return a writer of the tensors as a safetensors file, without another copy in memory.

    Tensors begin at multiples of `ALIGNMENT`, if possible. The format allows no gaps, so tensors of odd sizes come
    last. In a mapped file, matrices that begin elsewhere take a fifth longer to multiply, and sums are rounded
    differently.
    """

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(_laid_out(tensors))

    return write


def _laid_out(tensors: Mapping[str, "Tensor | Array"]) -> Iterator[bytes | memoryview]:
    """Yield the parts of the file in order."""
    order = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT > 0, name))
    described, end = {}, 0
    for name in order:
        first, end = end, end + tensors[name].nbytes
        described[name] = _Described(
            NAMES[str(tensors[name].dtype).removeprefix("torch.")], tuple(tensors[name].shape), (first, end)
        )
    header = msgspec.json.encode(described)
    header += b" " * (-(HEADER + len(header)) % ALIGNMENT)
    yield len(header).to_bytes(HEADER, "little")
    yield header
    for name in order:
        yield _bytes_of(tensors[name])


def _bytes_of(tensor: "Tensor | Array") -> memoryview:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    import torch  # noqa: PLC0415

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of one file that are held and released together."""

    file: MappedFile
    runs: Runs

    @property
    def size(self) -> int:
        """The size in bytes."""
        return PAGE * sum(map(len, self.runs))

    def hold(self) -> BytesRead:
        """Make them present. Raises `RepositoryError`; then none of them is held."""
        return self.file.hold(self.runs)

    def release(self) -> None:
        """Free those that have no other holder."""
        self.file.release(self.runs)


class MappedTensors(Mapping[str, "Tensor"]):
    """The tensors of a listed safetensors file as views of the mapped file: numbers are read when they are used.

    `arrays` are the same as arrays. Small tensors that begin where arithmetic would be slower or rounded differently
    are copies that stay in memory. Raises what `MappedFile` raises, and `RepositoryError` for a file that is not a
    safetensors file.
    """

    def __init__(self, directory: ModelDirectory, name: str, *, cached: bool = True) -> None:
        try:
            self._file = MappedFile(directory, name, cached=cached)
            self._spans, self.arrays, self._dtypes = _views(self._file.memory)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, ValueError, RuntimeError) as error:
            path = directory.path / name
            raise RepositoryError(
                f"{path} is not a safetensors file ({error!s:.200}): build the model again"
            ) from error
        self._file.release(())  # frees the pages of the description

    def __getitem__(self, name: str) -> "Tensor":
        return _tensor(self.arrays[name], self._dtypes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def pages(self, names: Iterable[str]) -> Pages:
        """Return the pages of these tensors; raises `RepositoryError` for one that does not exist."""
        try:
            return Pages(self._file, self._file.runs([self._spans[name] for name in names]))
        except KeyError as error:
            raise RepositoryError(
                f"{self._file.path} does not have the weight {error}: build the model again"
            ) from None


class _Described(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _views(memory: mmap.mmap) -> tuple[dict[str, tuple[int, int]], dict[str, Array], dict[str, str]]:
    """Return the position of each tensor in the file, in bytes, the tensor itself, and its dtype."""
    start, described = _described(memory)
    spans, arrays, dtypes = {}, {}, {}
    for name, found in described.items():
        first, end = (start + offset for offset in found.data_offsets)
        view, apart = _view(memory, start, found), first % ROUNDED and end - first < PAGE
        spans[name], arrays[name], dtypes[name] = (first, end), view.copy() if apart else view, DTYPES[found.dtype]
    return spans, arrays, dtypes


def _described(memory: bytes | mmap.mmap) -> tuple[int, dict[str, _Described]]:
    """Return where the numbers begin, and each tensor's description; raises unless they fill the file without overlap.

    Overlapping tensors would share memory between two weights: changing one in place changes the other.
    """
    length = int.from_bytes(memory[:HEADER], "little")
    if length > min(MOST_HEADER, len(memory) - HEADER):
        raise ValueError(f"its description would have {length} bytes; {MOST_HEADER} and the file's own are the limit")
    start = HEADER + length
    parts = msgspec.json.decode(memory[HEADER:start], type=dict[str, msgspec.Raw])
    parts.pop("__metadata__", None)
    described = {name: msgspec.json.decode(part, type=_Described) for name, part in parts.items()}
    place = 0
    for name, found in sorted(described.items(), key=lambda one: one[1].data_offsets):
        first, end = found.data_offsets
        size = prod(found.shape) * ITEM_BYTES[DTYPES[found.dtype]]
        if first != place or end - first != size:
            raise ValueError(f"{name!r:.100} is out of place")
        place = end
    if start + place != len(memory):
        raise ValueError(f"its tensors end at {start + place}, the file at {len(memory)}")
    return start, described
