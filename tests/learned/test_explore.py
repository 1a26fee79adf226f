"""Exploration on disk: what is trained stays, a kill costs little, and nothing is taken for what it is not."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import (
    ExplorationFolder,
    Origin,
    delete_exploration,
    explored_folder,
)
from latebind.learned.explore import SELECTOR_SHARE, Explorer, Progress, on_threads
from latebind.learned.metadata import read_caches
from latebind.learned.plan import Candidate
from latebind.learned.report import CacheReport
from latebind.learned.train import Lesson, predict
from latebind.program.load import load_program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from tests.building import build_stages
from tests.digits import FIT, Built, samples

SHAPE, ROWS, LEARN = (4, 6, 6), 640, 512
ORIGIN = Origin(1, "graph", "weights", "samples", 0, 4_096)
BOUNDARY = "relu.1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    """A network of two stages with an activation of `SHAPE` between them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)]
    module, folder = nn.Sequential(*layers).eval(), tmp_path_factory.mktemp("model") / "1"
    return build_stages(module, {"x": torch.randn(4, 1, 6, 6)}, folder, name="m", max_batch=2).directory


def explorer(model: ModelDirectory, folder: Path, *, presentations: int = 1_024, distillation: float = 0.9) -> Explorer:
    program, kept = load_program(model), ExplorationFolder.open(folder, ORIGIN)
    stage = program.activations.index(SHAPE)
    names = tuple(BOUNDARY if number == stage else f"other.{number}" for number in range(len(program.stages)))
    return Explorer(program, program, names, kept, 0, presentations, print, distillation=distillation)


def lessons() -> tuple[Lesson, Lesson]:
    rows = torch.randn(ROWS, *SHAPE, generator=torch.Generator().manual_seed(0))
    answers = 4.0 * rows.mean(dim=(2, 3))
    whole = Lesson(rows.bfloat16(), answers, answers.argmax(dim=1))
    return whole.rows(slice(0, LEARN)), whole.rows(slice(LEARN, None))


def candidate(of: Explorer, kind: str) -> Candidate:
    return Candidate(of.names.index(BOUNDARY), kind, 1e-3)


def train(of: Explorer, *kinds: str, at_once: int = 1) -> list[dict[str, float]]:
    told: list[dict[str, float]] = []
    with on_threads(1):
        recorded = {of.names.index(BOUNDARY): lessons()}
        of.train_networks([candidate(of, kind) for kind in kinds], recorded, at_once=at_once, on_progress=told.append)
    return told


def weights(of: Explorer, kind: str) -> dict[str, Tensor]:
    network = of.network(candidate(of, kind))
    assert network is not None
    return network.tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_selector_learns_from_rows_that_are_new_to_the_predictor_and_those_are_kept(
    model: ModelDirectory, tmp_path: Path
) -> None:
    of = explorer(model, tmp_path, presentations=16_000)
    train(of, "plain")
    network, (_, rows) = of.network(candidate(of, "plain")), lessons()
    assert network is not None
    assert not network.predictor.training
    assert torch.equal(network.classes, rows.answers.argmax(dim=1))
    assert torch.equal(network.features, predict(network.predictor.features, rows.activations).bfloat16())
    predicted = predict(network.predictor, rows.activations)
    right = predicted.argmax(dim=1) == network.classes
    scores = network.selector(predicted).detach()
    assert 0 < right.sum() < len(right)
    assert scores[right].mean() > scores[~right].mean() + 0.5


def test_weights_depend_on_the_loss_and_not_on_what_is_trained_beside(model: ModelDirectory, tmp_path: Path) -> None:
    alone, beside = explorer(model, tmp_path / "alone"), explorer(model, tmp_path / "beside")
    train(alone, "plain", "light")
    told = train(beside, "plain", "light", at_once=2)
    assert told[0] == {}
    assert set(told[-1].values()) == {1.0}
    for kind in ("plain", "light"):
        assert same(weights(alone, kind), weights(beside, kind))
    other = explorer(model, tmp_path / "other", distillation=0.0)
    train(other, "plain")
    assert not same(weights(alone, "plain"), weights(other, "plain"))


def test_trainings_end_when_the_build_is_interrupted_and_what_is_trained_stays(
    model: ModelDirectory, tmp_path: Path
) -> None:
    of = explorer(model, tmp_path, presentations=40 * LEARN)

    def interrupted(shares: dict[str, float]) -> None:
        if 0.0 < max(shares.values(), default=0.0) < 1.0:
            raise KeyboardInterrupt

    both, recorded = [candidate(of, kind) for kind in ("deep", "plain")], {of.names.index(BOUNDARY): lessons()}
    with pytest.raises(KeyboardInterrupt):
        of.train_networks(both, recorded, at_once=1, on_progress=interrupted)
    assert of.network(candidate(of, "plain")) is None


def test_a_torn_network_and_those_of_another_origin_are_none(tmp_path: Path) -> None:
    exploration = ExplorationFolder.open(tmp_path, ORIGIN)
    exploration.keep_network("a/b", "fc(16)", {"x": torch.ones(3)})
    exploration.keep_network("a/b", "light", {"x": torch.ones(3)})
    for path in (tmp_path / "networks").glob("*light*"):
        path.write_bytes(b"torn")
    again = ExplorationFolder.open(tmp_path, ORIGIN)
    assert again.network("a/b", "fc(16)") is not None
    assert again.network("a/b", "light") is None
    for number, other in enumerate((replace(ORIGIN, seed=1), replace(ORIGIN, weights="others"))):
        shutil.copytree(tmp_path, copy := tmp_path.parent / f"copy-{number}")
        assert ExplorationFolder.open(copy, other).network("a/b", "fc(16)") is None


def explore(
    directory: ModelDirectory,
    kinds: tuple[str, ...],
    *,
    cache_bytes: int = 1 << 20,
    progress: Progress | None = None,
) -> CacheReport:
    return build_caches(
        directory,
        samples(0, ROWS),
        samples(FIT, FIT + 300),
        fidelity=0.9,
        confidence=0.9,
        candidates=2,
        kinds=kinds,
        presentations=8_000,
        cache_bytes=cache_bytes,
        explored=explored_folder(directory.path),
        progress=progress,
    )


@pytest.mark.usefixtures("one_core")
def test_another_build_trains_only_what_is_missing_and_composes_within_the_memory(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: built.directory.read(name) for name in built.directory.files}
    directory = ModelDirectory.create(tmp_path / "digits" / "1", files)
    folder = explored_folder(directory.path)
    first = explore(directory, ("fc(8)",))
    networks = {path: path.stat().st_mtime_ns for path in (folder / "networks").iterdir()}
    assert len(networks) == len(first.tried) == 2
    assert first.notes == ()
    assert list((folder / "activations").iterdir()) == []
    assert [one.name for one in Repository(tmp_path).models()] == ["digits"]  # the folder beside it is no version

    # half of what the later boundary needs, so it is alone and learns from less
    disk, recordings = 128 * 8 * 8 * 2 * ROWS // 2, []

    def look(text: str, _share: float) -> None:
        if text.startswith("training"):
            recordings.append({path.name: path.stat().st_size for path in folder.glob("activations/*")})

    monkeypatch.setattr("latebind.learned.explore.DISK", disk)
    second = explore(first.directory, ("fc(8)", "plain"), cache_bytes=50_000, progress=look)
    assert 0 < max(sum(one.values()) for one in recordings) <= disk
    again = {(one.stage, one.kind): one.fidelity for one in second.tried}
    before = {(one.stage, one.kind): one.fidelity for one in first.tried if (one.stage, one.kind) in again}
    assert second.notes[0] == f"{len(before)} of {len(second.tried)} networks taken from an earlier run"
    assert before.items() <= again.items()
    assert any("the disk had room for" in note for note in second.notes[1:])
    assert {path: path.stat().st_mtime_ns for path in networks} == networks
    assert [one.kind for one in second.tried].count("fc(8)") == len(networks)

    # rows that are new to predictors are the last of those to fit, the same ones everywhere or the first of them
    unseen = [load_file(path)["classes"] for path in (folder / "networks").iterdir()]
    most = max(unseen, key=len)
    labels = samples(0, ROWS).labels
    assert labels is not None
    assert len(most) == round(SELECTOR_SHARE * len(labels)) > min(map(len, unseen))
    assert all(torch.equal(one, most[: len(one)]) for one in unseen)
    assert (most.bincount(minlength=10) - labels[-len(most) :].bincount(minlength=10)).abs().sum() < 0.15 * len(most)

    caches = read_caches(second.directory)
    assert caches is not None
    assert {one.stage for one in caches.every} == {one.stage for one in second.tried}
    assert {lookup.name for lookup in second.caches.lookups} <= {one.name for one in caches.every}
    assert 0 < sum(lookup.bytes for lookup in second.caches.lookups) <= 50_000
    delete_exploration(folder)
    assert not folder.exists()
