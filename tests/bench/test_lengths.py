"""What leaving early gains by length, over HTTP, for a model whose rows are of any length."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from latebind.bench import exits
from latebind.bench.subject import Folds, Setting, Subject
from tests.texts import BuiltTexts, unseen

ROWS = 80


@pytest.mark.usefixtures("one_core")
def test_gain_and_fidelity_are_told_by_quarters_of_the_lengths(built_texts: BuiltTexts, tmp_path: Path) -> None:
    shutil.copytree(built_texts.directory.path, tmp_path / "texts" / "1")
    some = unseen()
    assert isinstance(some.inputs, dict)
    rows = {name: [row.numpy() for row in part][:ROWS] for name, part in some.inputs.items()}
    found = exits.closed(Subject(tmp_path, "texts", rows), setting=Setting(backend="eager"))
    told = found.gain_rows()
    assert found.lengths is not None
    assert sorted(found.lengths.tolist()) == sorted(len(row) for row in rows["ids"])
    assert sum(int(str(row["requests"])) for row in told) == ROWS
    assert 2 <= len(told) <= 4
    same = [float(str(row["fidelity"])) * int(str(row["requests"])) for row in told]
    assert sum(same) / ROWS == pytest.approx(found.fidelity, abs=1e-3)


@pytest.mark.usefixtures("one_core")
def test_folds_of_rows_of_several_lengths_keep_each_with_its_length(built_texts: BuiltTexts, tmp_path: Path) -> None:
    shutil.copytree(built_texts.directory.path, tmp_path / "texts" / "1")
    some = unseen()
    assert isinstance(some.inputs, dict)
    rows = {name: [row.numpy() for row in part][: 2 * ROWS] for name, part in some.inputs.items()}
    found = exits.closed(Subject(tmp_path, "texts", rows), setting=Setting(backend="eager"), folds=Folds(2, 0.8))
    lengths = np.array([len(row) for row in rows["ids"]])
    assert found.lengths is not None
    assert found.lengths.tolist() == [*lengths[::2], *lengths[1::2]]
    assert found.fidelity >= 0.7
