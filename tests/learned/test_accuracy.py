"""How often a model is right: found out where labels are known, remembered, and not asked of anybody else."""

from pathlib import Path

import msgspec
import pytest
import torch

from latebind.domain.errors import RepositoryError
from latebind.learned.build import build_caches, recalibrate
from latebind.learned.samples import Samples
from latebind.learned.stored import (
    ACCURACY,
    Accuracy,
    accuracy_of,
    read_accuracies,
    read_accuracy,
    write_accuracy,
)
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from tests.digits import CALIBRATE, Built, samples


def copy_of(directory: ModelDirectory, folder: Path) -> ModelDirectory:
    files = {name: directory.read(name) for name in directory.files if name != ACCURACY}
    return ModelDirectory.create(folder / "copy", files)


def share_right(directory: ModelDirectory, known: Samples) -> float:
    """What one run over all rows gives, without anything that was built for lookups."""
    assert isinstance(known.inputs, dict)
    assert known.labels is not None
    (answers,) = load_program(directory).run(known.inputs["image"])
    return float(answers.argmax(dim=1).eq(known.labels).double().mean())


def test_a_model_built_with_labels_remembers_how_often_it_is_right(built: Built) -> None:
    found = read_accuracy(built.directory)
    assert found is not None
    assert found.share == pytest.approx(share_right(built.directory, built.calibrate))
    assert found.samples == CALIBRATE
    assert 0.8 < found.share < 1.0
    assert dict(built.report.rows())["accuracy"].startswith(f"{found.share:.4f} on {CALIBRATE} held-out samples")


def test_a_model_without_learned_caches_remembers_it_too(built: Built, tmp_path: Path) -> None:
    report = build_caches(copy_of(built.directory, tmp_path), built.fit, samples(0, 100), fidelity=1.0)
    found = read_accuracy(report.directory)
    assert found is not None
    assert found.share == pytest.approx(share_right(built.directory, samples(0, 100)))
    assert found.samples == 100


def test_nothing_is_remembered_where_nobody_has_labels(built: Built, tmp_path: Path) -> None:
    unlabelled = Samples(samples(0, 100).inputs)
    report = build_caches(copy_of(built.directory, tmp_path), built.fit, unlabelled, fidelity=1.0)
    assert read_accuracy(report.directory) is None
    assert "accuracy" not in dict(report.rows())


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_on_other_samples_finds_it_out_anew(built: Built, tmp_path: Path) -> None:
    directory = write_accuracy(copy_of(built.directory, tmp_path), Accuracy(0.25, 4))
    report = recalibrate(directory, samples(0, 200), fidelity=0.9, confidence=0.9, aside=False)
    found = read_accuracy(ModelDirectory.open(directory.path))
    assert found == report.right
    assert found is not None
    assert found.samples == 200


@pytest.mark.usefixtures("one_core")
def test_calibrating_again_without_labels_leaves_it(built: Built, tmp_path: Path) -> None:
    directory = write_accuracy(copy_of(built.directory, tmp_path), Accuracy(0.25, 4))
    report = recalibrate(directory, Samples(samples(0, 200).inputs), fidelity=0.9, confidence=0.9, aside=False)
    assert read_accuracy(report.directory) == Accuracy(0.25, 4)


def test_answers_are_right_where_the_label_is_the_greatest() -> None:
    answers = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [9.0, 1.0]])
    assert accuracy_of(answers, torch.tensor([1, 0, 0, 0])) == Accuracy(0.75, 4)


def test_accuracies_go_by_the_names_of_models(built: Built, models: Path) -> None:
    chain = ModelDirectory.open(models / "chain" / "1")
    found = read_accuracies([built.directory, chain])
    assert found == {"digits": pytest.approx(share_right(built.directory, built.calibrate))}


@pytest.mark.parametrize("wrong", [Accuracy(1.5, 10), Accuracy(-0.1, 10), Accuracy(0.5, 0)])
def test_a_share_without_sense_is_refused(built: Built, tmp_path: Path, wrong: Accuracy) -> None:
    directory = copy_of(built.directory, tmp_path).write_files({ACCURACY: msgspec.json.encode(wrong)})
    with pytest.raises(RepositoryError, match=r"accuracy\.json has .*, which is no share: build the model again"):
        read_accuracy(directory)
