"""The query example: pictures each have one purpose, models one question, and the file that it writes is a query."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from examples.query import demo
from examples.query.build import Builder
from examples.query.scenes import GATE, INPUT, Scene, of_digits
from examples.query.train import accuracy, accuracy_in, restored, train_missing, weights_of
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.queries.file.definition import read_query


@pytest.fixture(scope="module")
def digits() -> Scene:
    """Trained in a second: three epochs each, little networks for the large ones."""
    scene = of_digits()
    networks = {**scene.networks, GATE: scene.networks["small"], "large": scene.networks["medium"]}
    return replace(scene, networks=networks, epochs=dict.fromkeys(scene.epochs, 3))


@pytest.fixture(scope="module")
def weights(digits: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    train_missing(digits, folder, digits.models, 2, 0, lambda text, share: None)
    return folder


def test_a_gate_is_asked_for_the_family_and_the_families_for_their_own_classes(digits: Scene) -> None:
    gate, high = (digits.about(model, digits.test) for model in (GATE, "high-small"))
    assert gate.labels.tolist() == [int(label >= 5) for label in digits.test.labels.tolist()]
    assert set(high.labels.tolist()) == {5, 6, 7, 8, 9}
    assert len(high) == int(gate.labels.sum())


def test_accuracy_is_kept_beside_the_weights_as_measured_on_pictures_for_that(digits: Scene, weights: Path) -> None:
    measured = digits.about("low-medium", digits.measured)
    assert accuracy_in(weights, "low-medium") == round(accuracy(restored(digits, weights, "low-medium"), measured), 4)


def test_the_file_that_it_writes_is_a_query_over_its_models(digits: Scene, weights: Path, tmp_path: Path) -> None:
    image = TensorSpec(INPUT, "float32", (1, 8, 8))
    models = {
        model: ModelSpec(model, "1", (image,), (TensorSpec("output", "float32", (2 if model == GATE else 10,)),), 1, 8)
        for model in digits.models
    }
    accuracies = dict(zip(models, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), strict=True))
    query = read_query(Builder(digits, weights, tmp_path).write_query(), models, accuracies).query
    assert [(node.name, node.after, node.guarded) for node in query.nodes] == [
        ("gate", (), False),
        ("low", (0,), True),
        ("high", (0,), True),
    ]
    assert query.nodes[2].accuracies == (0.5, 0.6, 0.7)
    assert [tensor.name for tensor in query.spec.inputs] == [INPUT]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:no lookup is small enough to pay")  # so small is the gate
def test_the_demo_trains_what_is_missing_and_serves_what_it_has_built(
    digits: Scene, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "scene", lambda data: digits)
    shutil.copytree(weights, tmp_path / "weights")
    missing = weights_of(tmp_path / "weights", "low-small")
    missing.unlink()
    demo.main(["--out", str(tmp_path), "--requests", "5"])
    text = capsys.readouterr().out
    assert missing.exists()
    assert "low-large" in text
    assert "5 pictures at each of several deadlines" in text
