"""Files whose pages are held and let go: counted by page, seen from outside."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from latebind.domain.errors import RepositoryError
from latebind.repository.directory import ModelDirectory
from latebind.repository.tensors import (
    ALIGNMENT,
    PAGE,
    BytesRead,
    MappedFile,
    MappedTensors,
    read_tensors,
    tensor_bytes,
)
from tests.engine.resident import mapped_bytes

PAGES = 64
FILE = "numbers.bin"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    numbers = np.random.default_rng(0).bytes(PAGES * PAGE - 100)
    return ModelDirectory.create(tmp_path_factory.mktemp("pages") / "1", {FILE: numbers})


def present(directory: ModelDirectory) -> int:
    return mapped_bytes(os.getpid(), directory.path / FILE)


def pages_of(file: MappedFile) -> set[int]:
    """Return which pages of a mapping are present: the page table has eight bytes for each, whose highest bit tells."""
    first = np.frombuffer(file.memory, np.uint8).ctypes.data // PAGE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
        table.seek(8 * first)
        entries = np.frombuffer(table.read(8 * PAGES), np.uint64)
    return set(np.flatnonzero(entries >> np.uint64(63)).tolist())


def test_spans_become_runs_of_pages_that_do_not_touch(directory: ModelDirectory) -> None:
    file = MappedFile(directory, FILE)
    assert file.runs([(0, 1), (PAGE - 1, PAGE + 1), (5 * PAGE, 6 * PAGE), (3, 3)]) == (range(2), range(5, 6))
    assert file.runs([]) == ()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 20)), min_size=1, max_size=8), st.data())
def test_exactly_what_somebody_holds_is_present(
    directory: ModelDirectory, parts: list[tuple[int, int]], data: st.DataObject
) -> None:
    file = MappedFile(directory, FILE)
    held = [file.runs([(first * PAGE, min(first + count, PAGES) * PAGE - 100)]) for first, count in parts]
    for runs in held:
        assert file.hold(runs).size == PAGE * sum(map(len, runs))
    while held:
        pages = {page for runs in held for run in runs for page in run}
        assert pages_of(file) == pages
        file.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
    assert pages_of(file) == set()


def test_what_is_read_while_nobody_holds_it_goes_with_the_next_that_is_let_go(directory: ModelDirectory) -> None:
    file = MappedFile(directory, FILE)
    runs = file.runs([(0, PAGE)])
    file.hold(runs)
    assert file.memory[40 * PAGE : 41 * PAGE] == (directory.path / FILE).read_bytes()[40 * PAGE : 41 * PAGE]
    assert present(directory) > PAGE
    file.release(runs)
    assert present(directory) == 0


def test_a_file_that_was_altered_is_not_mapped(tmp_path: Path) -> None:
    directory = ModelDirectory.create(tmp_path / "1", {FILE: bytes(PAGE)})
    (directory.path / FILE).write_bytes(bytes(PAGE - 1) + b"1")
    with pytest.raises(RepositoryError, match="differs from the manifest"):
        MappedFile(directory, FILE)


def test_a_file_that_is_altered_while_it_is_mapped_is_not_read(tmp_path: Path) -> None:
    directory = ModelDirectory.create(tmp_path / "1", {FILE: bytes(4 * PAGE)})
    file = MappedFile(directory, FILE)
    os.utime(directory.path / FILE, ns=(0, 0))
    with pytest.raises(RepositoryError, match="changed while it is served"):
        file.hold(file.runs([(0, PAGE)]))
    assert present(directory) == 0


def test_bytes_brought_add_up() -> None:
    assert BytesRead(10, 4) + BytesRead(5, 5) == BytesRead(15, 9)


def test_tensors_are_written_so_that_any_reader_gets_them_back_and_even_ones_are_aligned(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.arange(5, dtype=torch.int16),
        "matrix": torch.randn(16, 32),
        "one": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
        "half": torch.randn(64).to(torch.bfloat16),
        "bits": torch.tensor([True, False, True]),
        "turned": torch.randn(8, 16).T,
    }
    written = tensor_bytes(tensors)
    directory = ModelDirectory.create(tmp_path / "1", {"w.safetensors": written})
    mapped = MappedTensors(directory, "w.safetensors")
    for found in (load(written), mapped, MappedTensors(older(tmp_path, tensors), "w.safetensors")):
        assert set(found) == set(tensors)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert all(mapped[name].data_ptr() % ALIGNMENT == 0 for name in ("matrix", "half", "turned"))


def older(folder: Path, tensors: dict[str, torch.Tensor]) -> ModelDirectory:
    """Return a directory with the file as safetensors itself writes it."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return ModelDirectory.create(folder / "older", {"w.safetensors": save(plain)})


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xff" * 40,
        (2).to_bytes(8, "little") + b"[]",
        tensor_bytes({"w": torch.zeros(8)})[:-1],
        tensor_bytes({"w": torch.zeros(8)}).replace(b"[8]", b"[9]"),
        tensor_bytes({"w": torch.zeros(8)}).replace(b"F32", b"X32"),
        tensor_bytes({"w": torch.zeros(8)}) + b"\0",
        tensor_bytes({"weight": torch.zeros(8)}).replace(b"    ", b"", 1).replace(b"[8]", b"[-2,-4]"),
        tensor_bytes({"weight": torch.zeros(0)}).replace(b"    ", b"", 1).replace(b"[0]", b"[-2, 0]"),
    ],
)
def test_a_file_that_holds_no_tensors_is_refused(tmp_path: Path, broken: bytes) -> None:
    directory = ModelDirectory.create(tmp_path / "1", {"w.safetensors": broken})
    for read in (MappedTensors, read_tensors):
        with pytest.raises(RepositoryError, match="not a safetensors file"):
            read(directory, "w.safetensors")
