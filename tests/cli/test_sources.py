"""Where rows come from: a file, or a function with what `--data-option` says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latebind.cli.sources import example_inputs, load_rows
from latebind.domain.errors import ConfigError
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
    made = example_inputs(["input_ids=int64:4", "attention_mask=int64:4"], seed=2**63 - 1)
    assert made["input_ids"].sum() == 0
    assert bool((made["attention_mask"] == 1).all())


@pytest.mark.parametrize("other", ["mask", "labels"])
def test_rows_to_send_of_which_some_lack_an_input_or_a_label_are_refused(other: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    arrays: dict[str, Any] = {"x": np.zeros((3, 2), np.float32), other: np.zeros(2, np.int64)}
    np.savez(file, **arrays)
    with pytest.raises(ConfigError, match="different numbers of rows"):
        load_rows(str(file), None)
