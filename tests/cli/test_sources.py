"""Where rows come from: a file, or a function with what `--data-option` says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latebind.cli.sources import check_batch, example_inputs, load_rows, load_samples, load_sized_rows
from latebind.domain.errors import ConfigError
from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Dim
from latebind.learned.samples import Samples


def some_rows(count: str) -> Samples:
    """Return so many rows; named by a test."""
    return Samples({"x": torch.zeros(int(count), 2)}, torch.arange(int(count)))


def test_rows_and_labels_come_from_a_file_or_a_function_that_is_given_the_options_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 2), np.float32), labels=np.arange(4))
    for data, given in ((str(tmp_path / "rows.npz"), None), ("tests.cli.test_sources:some_rows", ["count=4"])):
        inputs, labels = load_rows(data, given)
        assert {name: rows.shape for name, rows in inputs.items()} == {"x": (4, 2)}
        assert labels is not None
        assert labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("data", "given", "said"),
    [
        ("rows.npz", "count", "'count': write it as key=value"),
        ("tests.cli.test_sources:some_rows", "count", "'count': write it as key=value"),
        ("tests.cli.test_sources:some_rows", "rows=4", r"--data-option .*'rows'"),
    ],
)
def test_an_option_without_a_value_or_that_a_function_does_not_take_is_refused(
    data: str, given: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_rows(data, [given])


def test_a_mask_of_examples_hides_nothing() -> None:
    made, varying = example_inputs(["input_ids=int64:4", "attention_mask=int64:4"], seed=2**63 - 1)
    assert varying == ((), {})
    assert made["input_ids"].sum() == 0
    assert bool((made["attention_mask"] == 1).all())


def test_named_sizes_are_dimensions_and_examples_are_neither_the_least_nor_the_most() -> None:
    inputs = ["ids=int64:L", "image=float32:3xHxW", "scale=float32:"]
    made, varying = example_inputs(inputs, ["L=1..512", "W=32..1024:32", "H=7..8"], seed=0)
    assert varying.dims == (Dim("L", 1, 512), Dim("W", 32, 1024, 32), Dim("H", 7, 8))
    assert varying.sizes == {"ids": ("L",), "image": (3, "H", "W")}
    shapes = {name: tuple(tensor.shape) for name, tensor in made.items()}
    assert shapes == {"ids": (2, 256), "image": (2, 3, 7, 512), "scale": (2,)}


@pytest.mark.parametrize(
    ("inputs", "ranges", "said"),
    [
        ("x=int64:L", "", r"'x=int64:L': L has no --dim; add --dim L=1\.\.512"),
        ("x=int64:lenght", "length=1..9", "lenght has no --dim: did you mean 'length'.; add"),
        ("x=int64:2*L", "L=1..9", r"'2\*L' is not a size: write a number, or a name"),
        ("x=int64:3x", "", "write it as image=float32"),
        ("x=int64:4", "L=1..512", "no input has the dimension L"),
        ("x=int64:L", "L=512", r"--dim 'L=512': write L=1\.\.512"),
        ("x=int64:L", "Lx=1..512", "a name of letters and no x"),
        ("x=int64:L", "L=1..512 L=1..512", "L is declared twice"),
        ("x=int64:L", "L=0..512", "at least 1"),
        ("x=int64:L", "L=32..512:0", "steps are of 1 or more"),
        ("x=int64:L", "L=512..1", r"ends before it begins: did you mean 1 to 512\?"),
        ("x=int64:L", "L=32..1000:32", r"multiples of the step, 32: from 32 to 992\?"),
        ("x=int64:L", "L=1..31:32", "multiples of the step, 32$"),
        ("x=int64:L", "L=8..8", "a single size: write 8 instead of L"),
        ("x=int64:L", "L=1..99999999999999999", "more than any row has"),
        ("x=int64:Min", "Min=1..9", "'Min' is not a name"),
        ("x=int64:LxL", "L=1..9999999999", "two rows of the largest size are larger than memory"),
        ("x=int64:L", "L=1..999999999999", "two rows of the largest size are larger than memory"),
    ],
)
def test_sizes_that_nobody_can_have_meant_are_refused_with_what_to_write(inputs: str, ranges: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        example_inputs(inputs.split(), ranges.split(), seed=0)


def test_batches_that_no_memory_holds_are_refused_before_anything_is_made() -> None:
    image = TensorSpec("image", "float32", (3, 1024, 1024), sizes=(3, "H", "W"))
    check_batch([image], 16, memory=1 << 30)
    with pytest.raises(ConfigError, match=r"a batch of 16 rows of the largest size has 0.2 GB, and memory 0.1 GB"):
        check_batch([image], 16, memory=100_000_000)


@pytest.mark.parametrize("other", ["mask", "labels"])
def test_rows_to_send_of_which_some_lack_an_input_or_a_label_are_refused(other: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    arrays: dict[str, Any] = {"x": np.zeros((3, 2), np.float32), other: np.zeros(2, np.int64)}
    np.savez(file, **arrays)
    with pytest.raises(ConfigError, match="different numbers of rows"):
        load_rows(str(file), None)


TEXTS = (TensorSpec("ids", "int64", (9,), sizes=("L",)), TensorSpec("scores", "float32", (3, 9), sizes=(3, "L")))


def test_rows_of_a_file_are_cut_to_the_sizes_that_it_tells(tmp_path: Path) -> None:
    file, lengths = tmp_path / "rows.npz", np.array([2, 5, 1, 5])
    ids, scores = np.arange(20).reshape(4, 5), np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    np.savez(file, ids=ids, scores=scores, L=lengths, labels=np.arange(4))
    inputs, labels = load_sized_rows(str(file), None, TEXTS)
    assert labels is not None
    assert set(inputs) == {"ids", "scores"}
    assert [row.tolist() for row in inputs["ids"]] == [[0, 1], [5, 6, 7, 8, 9], [10], [15, 16, 17, 18, 19]]
    assert [row.shape for row in inputs["scores"]] == [(3, 2), (3, 5), (3, 1), (3, 5)]
    fit, calibrate = load_samples(str(file), None, seed=0, inputs=TEXTS)
    both = [part.ordered(TEXTS, (Dim("L", 1, 9),)) for part in (fit, calibrate)]
    found = {int(label): int(length) for part in both for label, length in zip(*told(part), strict=True)}
    assert found == dict(enumerate(lengths.tolist()))


def told(part: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    assert part.labels is not None
    assert part.lengths is not None
    return part.labels, part.lengths


def test_rows_of_a_file_that_tells_no_sizes_are_as_long_as_its_arrays(tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, ids=np.zeros((4, 5), np.int64), scores=np.zeros((4, 3, 5), np.float32))
    fit, _ = load_samples(str(file), None, seed=0, inputs=TEXTS)
    assert fit.ordered(TEXTS, (Dim("L", 1, 9),)).lengths is not None
    inputs, _ = load_sized_rows(str(file), None, TEXTS)
    assert np.shape(inputs["ids"]) == (4, 5)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (np.array([2.0, 3.0]), "L must have one whole number for each row, its size"),
        (np.ones((2, 1), np.int64), "L must have one whole number for each row, its size"),
        (np.array([2, 6]), r"ids has shape \[2, 5\], and L says that rows are 2 to 6 long: save each row padded"),
        (np.array([0, 5]), "L says that rows are 0 to 5 long"),
        (np.array([2, 3, 4]), "different numbers of rows"),
    ],
)
def test_sizes_that_the_rows_of_a_file_cannot_have_are_refused(
    lengths: np.ndarray[Any, Any], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.npz"
    np.savez(file, ids=np.zeros((2, 5), np.int64), L=lengths)
    with pytest.raises(ConfigError, match=said):
        load_sized_rows(str(file), None, TEXTS)
