"""Exploration on disk: what is trained stays, a kill costs little, and nothing is taken for what it is not."""

import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from latebind.domain.errors import ConfigError
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import (
    ExplorationFolder,
    Origin,
    delete_exploration,
    explored_folder,
    fingerprint,
)
from latebind.learned.explore import MOST_PASSES, SELECTOR_SHARE, Explorer, Progress, on_threads, passes_over
from latebind.learned.plan import Candidate
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples
from latebind.learned.stored import read_caches
from latebind.learned.train import predict
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
    """What trains networks on activations that lie in the folder."""
    program, kept = load_program(model), ExplorationFolder.open(folder, ORIGIN)
    stage = program.activations.index(SHAPE)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, *SHAPE, generator=generator)
    answers = 4.0 * rows.mean(dim=(2, 3))
    kept.allocate_activations(BOUNDARY, ROWS, SHAPE).copy_(rows)
    kept.mark_recorded(BOUNDARY, answers, answers.argmax(dim=1), learn=LEARN)
    names = tuple(BOUNDARY if number == stage else f"other.{number}" for number in range(len(program.stages)))
    return Explorer(
        program, program, names, kept, 0, presentations, 1 << 30, print, distillation, checkpoint_seconds=0.0
    )


def candidate(of: Explorer, kind: str) -> Candidate:
    return Candidate(of.names.index(BOUNDARY), kind, 1e-3)


def train(of: Explorer, *kinds: str, at_once: int = 1) -> list[dict[str, float]]:
    told: list[dict[str, float]] = []
    with on_threads(1):
        of.train_networks([candidate(of, kind) for kind in kinds], at_once=at_once, tell=told.append)
    return told


def weights(of: Explorer, kind: str) -> dict[str, Tensor]:
    network = of.network(candidate(of, kind))
    assert network is not None
    return network.tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def killed_while_training(model: Path, folder: Path) -> None:
    """Train in this process, which kills itself a few steps behind a checkpoint."""
    of, steps = explorer(ModelDirectory.open(model), folder), 0
    keep, kept = ExplorationFolder.keep_checkpoint, of.kept

    def keep_and_count(self: ExplorationFolder, *given: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        keep(self, *given)  # type: ignore[arg-type]

    ExplorationFolder.keep_checkpoint = keep_and_count  # type: ignore[assignment,method-assign]
    assert kept.checkpoint(BOUNDARY, "light") is None
    train(of, "light")


def test_a_training_killed_in_the_middle_goes_on_and_ends_with_the_same_bits(
    model: ModelDirectory, tmp_path: Path
) -> None:
    whole = explorer(model, tmp_path / "whole")
    train(whole, "light")
    script = (
        "import sys; from pathlib import Path; from tests.learned.test_explore import killed_while_training; "
        "killed_while_training(*map(Path, sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, str(model.path), str(tmp_path / "broken")]
    assert subprocess.run(words, timeout=200, check=False).returncode == -signal.SIGKILL
    broken = explorer(model, tmp_path / "broken")
    state = broken.kept.checkpoint(BOUNDARY, "light")
    assert state is not None
    assert state["at"].tolist() == [3, 8]
    assert broken.network(candidate(broken, "light")) is None
    assert train(broken, "light")[-1] == {candidate(broken, "light").name: 1.0}
    assert same(weights(whole, "light"), weights(broken, "light"))
    assert broken.kept.checkpoint(BOUNDARY, "light") is None


def test_a_checkpoint_of_other_rows_or_a_torn_one_is_left_aside(model: ModelDirectory, tmp_path: Path) -> None:
    of = explorer(model, tmp_path, presentations=256)
    train(of, "light")
    wanted = weights(of, "light")
    of.kept.keep_checkpoint(BOUNDARY, "light", {"at": torch.tensor([1, 2])})
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    other = checkpoint.read_bytes()
    for data in (b"", b"torn", other[:20], other):
        checkpoint.write_bytes(data)
        train(of, "light")
        assert same(weights(of, "light"), wanted)


def test_a_selector_learns_from_rows_that_are_new_to_the_predictor_and_those_are_kept(
    model: ModelDirectory, tmp_path: Path
) -> None:
    of = explorer(model, tmp_path, presentations=16_000)
    train(of, "plain")
    network, found = of.network(candidate(of, "plain")), of.kept.recorded(BOUNDARY, SHAPE)
    assert network is not None
    assert found is not None
    assert not network.predictor.training
    rows = found.unseen()
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

    with pytest.raises(KeyboardInterrupt):
        of.train_networks([candidate(of, kind) for kind in ("deep", "plain")], at_once=1, tell=interrupted)
    assert of.network(candidate(of, "plain")) is None
    assert of.kept.checkpoint(BOUNDARY, "deep") is not None


def test_rows_are_seen_again_until_there_are_enough_but_not_for_ever() -> None:
    assert [passes_over(rows, 1_000) for rows in (1, 100, 10_000)] == [MOST_PASSES, 10, 1]


def test_activations_that_are_not_whole_are_not_taken(model: ModelDirectory, tmp_path: Path) -> None:
    of = explorer(model, tmp_path)
    found = of.kept.recorded(BOUNDARY, SHAPE)
    assert found is not None
    assert found.activations.is_contiguous(memory_format=torch.channels_last)
    for lesson, rows in ((found.seen(), slice(0, LEARN)), (found.unseen(), slice(LEARN, ROWS))):
        assert torch.equal(lesson.activations, found.activations[rows])
        assert torch.equal(lesson.answers, found.answers[rows])
        assert lesson.labels is not None
        assert torch.equal(lesson.labels, found.answers[rows].argmax(dim=1))
    (binary,) = (tmp_path / "activations").glob("*.bin")
    assert binary.stat().st_size == 2 * ROWS * math.prod(SHAPE)
    os.truncate(binary, 100)
    assert of.kept.recorded(BOUNDARY, SHAPE) is None
    with pytest.raises(ConfigError, match=r"no activations of 'relu\.1'"):
        train(of, "plain")


def test_a_disk_without_room_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    exploration = ExplorationFolder.open(tmp_path, ORIGIN)
    with pytest.raises(ConfigError, match="make room there"):
        exploration.allocate_activations("relu", 1 << 50, SHAPE)
    assert exploration.recorded_bytes() == 0


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


def test_a_fingerprint_tells_rows_and_labels_apart() -> None:
    rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    many, last = torch.zeros(3_000, 2), torch.zeros(3_000, 2)
    last[-1] = 1.0
    given = (Samples((rows,)), Samples((rows,), labels), Samples((rows + 1,), labels), Samples((rows.T,)))
    found = {fingerprint(one) for one in (*given, Samples((many,)), Samples((last,)))}
    assert len(found) == 6
    assert fingerprint(Samples((rows.clone(),))) in found


def explore(
    directory: ModelDirectory,
    kinds: tuple[str, ...],
    *,
    disk: int = 1 << 30,
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
        disk=disk,
        cache_bytes=cache_bytes,
        explored=explored_folder(directory.path),
        aside=False,
        progress=progress,
    )


@pytest.mark.usefixtures("one_core")
def test_another_build_trains_only_what_is_missing_and_composes_within_the_memory(built: Built, tmp_path: Path) -> None:
    files = {name: built.directory.read(name) for name in built.directory.files}
    directory = ModelDirectory.create(tmp_path / "digits" / "1", files)
    folder = explored_folder(directory.path)
    first = explore(directory, ("fc(8)",))
    networks = {path: path.stat().st_mtime_ns for path in (folder / "networks").iterdir()}
    assert len(networks) == len(first.tried) == 2
    assert first.notes == ()
    assert list((folder / "activations").iterdir()) == list((folder / "checkpoints").iterdir()) == []
    assert [one.name for one in Repository(tmp_path).models()] == ["digits"]  # the folder beside it is no version

    # half of what the later boundary needs, so it is alone and learns from less
    disk, recordings = 128 * 8 * 8 * 2 * ROWS // 2, []

    def look(text: str, _share: float) -> None:
        if text.startswith("training"):
            recordings.append({path.name: path.stat().st_size for path in folder.glob("activations/*.bin")})
            for path in folder.glob("activations/*.safetensors"):
                tensors = load_file(path)
                assert (tensors["answers"].argmax(dim=1) == tensors["labels"]).float().mean() > 0.9

    second = explore(first.directory, ("fc(8)", "plain"), disk=disk, cache_bytes=50_000, progress=look)
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
    assert {lookup.name for lookup in second.lookups} <= {one.name for one in caches.every}
    assert 0 < sum(lookup.bytes for lookup in second.lookups) <= 50_000
    delete_exploration(folder)
    assert not folder.exists()


def test_variants_tell_what_each_gives_alone_at_the_target(built: Built) -> None:
    rows = built.report.variants()
    assert len(rows) == len(built.report.tried)
    for row in rows:
        assert 0.0 <= float(str(row["hit rate"])) <= 1.0
        assert float(str(row["accuracy"])) >= built.report.target
    assert {row["used"] for row in rows} <= {"yes", "no"}
    assert sum(row["used"] == "yes" for row in rows) == len(built.report.lookups)
