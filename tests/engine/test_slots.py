"""Shared slots: the same rows from two mappings, none overlapping."""

import os

import numpy as np

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.slots import SlotMemory, create_file, file_bytes

ROWS = {"a": 9, "b": 5}
SPECS = [
    ModelSpec("a", "1", (TensorSpec("x", "float32", (3, 5)),), (TensorSpec("y", "float32", (2,)),), 1, 4),
    ModelSpec(
        "b", "1", (TensorSpec("p", "int64", ()), TensorSpec("q", "bool", (7,))), (TensorSpec("y", "uint8", (1,)),), 1, 4
    ),
]


def test_two_mappings_see_the_same_rows_and_no_rows_overlap() -> None:
    fd = create_file()
    os.ftruncate(fd, file_bytes(SPECS, ROWS))
    ours, theirs = SlotMemory(fd, SPECS, ROWS), SlotMemory(fd, SPECS, ROWS)
    os.close(fd)
    written = [rows for model in ours.models for rows in (*model.inputs, *model.outputs)]
    random = np.random.default_rng(0)
    values = [(random.random(rows.shape) * 2).astype(rows.dtype) for rows in written]
    for rows, value in zip(written, values, strict=True):
        rows[...] = value
    seen = [rows for model in theirs.models for rows in (*model.inputs, *model.outputs)]
    assert [rows.shape for rows in seen] == [(9, 3, 5), (9, 2), (5,), (5, 7), (5, 1)]
    for rows, value in zip(seen, values, strict=True):
        np.testing.assert_array_equal(rows, value)
