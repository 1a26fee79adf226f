"""Tensors in a model directory: safetensors files, which hold only numbers. A module of its own, as it needs torch."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from mmap import mmap
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from latebind.domain.errors import RepositoryError
from latebind.repository.directory import ModelDirectory, Writer
from latebind.repository.pages import PAGE, BytesRead, MappedFile, Runs

HEADER = 8  # bytes that hold the length of the description, which precedes the numbers
MOST_HEADER = 8 << 20  # bytes of the description
ALIGNMENT = 64
ROUNDED = 16  # bytes; the allocator's blocks begin at multiples of this
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_tensors(directory: ModelDirectory, name: str) -> dict[str, Tensor]:
    """Return all tensors of a listed safetensors file; raises `RepositoryError` if it is not one."""
    try:
        data = directory.read(name)
        _described(data)
        return load(data)
    except (SafetensorError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, ValueError) as error:
        raise RepositoryError(
            f"{directory.path / name} is no safetensors file ({error!s:.200}): build it again"
        ) from error


def check_weights(directory: ModelDirectory, name: str, graph_weights: Iterable[str], there: Collection[str]) -> None:
    """Raise `RepositoryError` if a listed file, with the tensors that are `there`, lacks one that a graph names."""
    lacking = next((weight for weight in graph_weights if weight not in there), None)
    if lacking is not None:
        raise RepositoryError(
            f"{directory.path / name} lacks the weight {lacking!r:.100}, which a graph names: build the model again"
        )


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as the bytes of a safetensors file, laid out as by `tensor_file`."""
    return b"".join(_laid_out(tensors))


def tensor_file(tensors: Mapping[str, Tensor]) -> Writer:
    """Return a writer of the tensors as a safetensors file, without another copy in memory.

    Tensors begin at multiples of `ALIGNMENT`, if possible. The format allows no gaps, so tensors of odd sizes come
    last. In a mapped file, matrices that begin elsewhere take a fifth longer to multiply, and sums are rounded
    differently.
    """

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(_laid_out(tensors))

    return write


def _laid_out(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the parts of the file in order."""
    order = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT > 0, name))
    described, end = {}, 0
    for name in order:
        first, end = end, end + tensors[name].nbytes
        described[name] = _Described(NAMES[tensors[name].dtype], tuple(tensors[name].shape), (first, end))
    header = msgspec.json.encode(described)
    header += b" " * (-(HEADER + len(header)) % ALIGNMENT)
    yield len(header).to_bytes(HEADER, "little")
    yield header
    for name in order:
        yield tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
        """Free those that nobody else holds."""
        self.file.release(self.runs)

    def cut(self, size: int) -> tuple["Pages", "Pages"]:
        """Return the first `size` bytes of them, a multiple of a page, and the rest."""
        first, rest = list[range](), list[range]()
        left = size // PAGE
        for run in self.runs:
            middle = run.start + max(0, min(left, len(run)))
            left -= len(run)
            first += [range(run.start, middle)] if middle > run.start else []
            rest += [range(middle, run.stop)] if middle < run.stop else []
        return Pages(self.file, tuple(first)), Pages(self.file, tuple(rest))


class MappedTensors(Mapping[str, Tensor]):
    """The tensors of a listed safetensors file as views of the mapped file: numbers are read when they are used.

    Small tensors that begin where arithmetic would be slower or rounded differently are copies that stay in memory.
    Raises what `MappedFile` raises, and `RepositoryError` for a file that is not a safetensors file.
    """

    def __init__(self, directory: ModelDirectory, name: str, *, cached: bool = True) -> None:
        try:
            self._file = MappedFile(directory, name, cached=cached)
            self._spans, self._tensors = _views(self._file.memory)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, ValueError, RuntimeError) as error:
            path = directory.path / name
            raise RepositoryError(f"{path} is no safetensors file ({error!s:.200}): build the model again") from error
        self._file.release(())  # frees the pages of the description

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

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


def _views(memory: mmap) -> tuple[dict[str, tuple[int, int]], dict[str, Tensor]]:
    """Return the position of each tensor in the file, in bytes, and the tensor itself."""
    start, described = _described(memory)
    spans, tensors = {}, {}
    for name, found in described.items():
        first, end = (start + offset for offset in found.data_offsets)
        dtype, count = DTYPES[found.dtype], prod(found.shape)
        flat = (
            torch.frombuffer(memory, dtype=dtype, count=count, offset=first) if count else torch.empty(0, dtype=dtype)
        )
        apart = first % ROUNDED and end - first < PAGE
        spans[name], tensors[name] = (first, end), (flat.clone() if apart else flat).view(found.shape)
    return spans, tensors


def _described(memory: bytes | mmap) -> tuple[int, dict[str, _Described]]:
    """Return where the numbers begin, and what a file says of each tensor; raises if they do not fill it, one by one.

    Tensors that overlap would be one memory for two weights: whoever changes one in place changes the other.
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
        size = prod(found.shape) * DTYPES[found.dtype].itemsize
        if first != place or end - first != size:
            raise ValueError(f"{name!r:.100} lies where it cannot")
        place = end
    if start + place != len(memory):
        raise ValueError(f"its tensors end at {start + place}, the file at {len(memory)}")
    return start, described
