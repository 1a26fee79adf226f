"""Folds: each row is answered by thresholds calibrated on the others, and the model itself stays as it was."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from latebind.bench import exits
from latebind.bench.subject import Folds, Setting, Subject, answerable
from latebind.domain.errors import ConfigError
from latebind.learned.metadata import read_caches
from latebind.learned.promise import Promise
from latebind.learned.samples import whole
from latebind.learned.stored import HELD_OUT, read_rows
from latebind.repository.directory import ModelDirectory
from research.gati.locality import calibrations
from tests.digits import Built

ROWS = 240


def subject(repository: Path, given: Built, rows: int = ROWS) -> Subject:
    assert isinstance(given.calibrate.inputs, dict)
    assert given.calibrate.labels is not None
    images = whole(given.calibrate.inputs["image"])[:rows].numpy()
    return Subject(repository, "digits", {"image": images}, given.calibrate.labels[:rows].numpy())


def ask(repository: Path, given: Built, *, folds: int) -> exits.Compared:
    return exits.closed(subject(repository, given), setting=Setting(backend="eager"), folds=Folds(folds, fidelity=0.8))


@pytest.fixture(scope="module")
def repository(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folds")
    shutil.copytree(built.directory.path, root / "digits" / "1")
    return root


@pytest.mark.usefixtures("one_core")
def test_every_row_is_answered_once_and_the_model_stays(repository: Path, built: Built) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    report = ask(repository, built, folds=2)
    assert len(report.on.answers) == ROWS
    assert report.on.left_at[0] > 0.2  # before the network
    assert report.fidelity >= 0.75
    assert float(str(report.rows()[0]["accuracy"])) > 0.9  # labels go with their rows
    assert np.all(report.on.seconds > 0)
    assert before == {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("one_core")
def test_each_fold_has_a_copy_that_was_calibrated_on_the_other_rows(repository: Path, built: Built) -> None:
    whole, asked = subject(repository, built), list[int]()
    assert whole.labels is not None
    for part in answerable(whole, Folds(2, 0.8), Setting("eager"), lambda text, share: None):
        directory = ModelDirectory.open(part.path)
        caches, held_out = read_caches(directory), read_rows(directory, HELD_OUT)
        assert caches is not None
        assert held_out is not None
        assert caches.target == 0.8
        here = np.arange(ROWS) % 2 == len(asked)
        assert (held_out.classes.numpy() == whole.labels[~here]).mean() > 0.9
        assert np.array_equal(part.inputs["image"], whole.inputs["image"][here])
        asked.append(len(part))
    assert sum(asked) == ROWS


@pytest.mark.usefixtures("one_core")
def test_calibrations_on_halves_are_judged_on_the_other_halves(repository: Path, built: Built) -> None:
    every = subject(repository, built, len(built.calibrate))
    rows, broken = calibrations(every, promise=Promise(0.9, 0.9), splits=4, backend="eager", seed=3)
    assert len(rows) == 4
    realized = [float(str(row["realized"])) for row in rows]
    assert broken == sum(share < 0.9 for share in realized) <= 1
    assert all(float(str(row["at least"])) >= 0.9 and float(str(row["times less"])) > 1.0 for row in rows)
    assert len(set(realized)) > 1


@pytest.mark.parametrize("folds", [1, ROWS + 1])
def test_a_number_of_folds_without_sense_is_refused(repository: Path, built: Built, folds: int) -> None:
    with pytest.raises(ConfigError, match="folds"):
        ask(repository, built, folds=folds)
