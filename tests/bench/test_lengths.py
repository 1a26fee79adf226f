"""What leaving early gains by length, over HTTP, for a model whose rows are of any length."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from latebind.bench import exits
from latebind.bench.subject import Folds, Setting, Subject
from latebind.domain.errors import ConfigError
from latebind.domain.sizes import Dim
from latebind.program.build import build_program
from tests.digits import Built
from tests.texts import LONGEST, BuiltTexts, filled_up, texts, trained, unseen

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
def test_the_side_off_may_be_another_build_of_the_same_network(
    built_texts: BuiltTexts, built: Built, tmp_path: Path
) -> None:
    shutil.copytree(built_texts.directory.path, tmp_path / "texts" / "1")
    shutil.copytree(built.directory.path, tmp_path / "digits" / "1")
    rows = dict(zip(("ids", "mask"), filled_up(texts()[0][:4], LONGEST), strict=True))
    dims, sizes = (Dim("L", 1, LONGEST),), {"ids": ["L"], "mask": ["L"]}
    build_program(
        trained(), rows, directory=tmp_path / "uncut" / "1", name="uncut", backends=["eager"], dims=dims, sizes=sizes,
        min_stage_seconds=100.0, max_batch=8,
    )  # fmt: skip
    some = unseen()
    assert isinstance(some.inputs, dict)
    subject = Subject(
        tmp_path, "texts", {name: [row.numpy() for row in part][:ROWS] for name, part in some.inputs.items()}
    )
    found = exits.closed(subject, setting=Setting(backend="eager"), full="uncut")
    assert {answer.left_at for answer in found.off.answers} == {0}
    assert {answer.left_at for answer in found.on.answers} > {0}
    assert found.fidelity >= 0.9
    assert any(row["left early"] != "0.0%" for row in found.gain_rows())
    with pytest.raises(ConfigError, match="digits takes or answers other rows than texts"):
        exits.closed(subject, setting=Setting(backend="eager"), full="digits")


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
