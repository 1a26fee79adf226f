"""Exploration on disk: what is trained stays, a kill costs little, and nothing is taken for what it is not."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from latebind.domain.errors import ConfigError, TrainingStopped
from latebind.learned.build import build_caches
from latebind.learned.exploration_folder import (
    ExplorationFolder,
    Origin,
    delete_exploration,
    explored_folder,
    fingerprint,
)
from latebind.learned.explore import SELECTOR_SHARE, Progress
from latebind.learned.recorded import allocate_activations, delete_recorded, load_recorded, mark_complete
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples
from latebind.learned.stored import read_caches
from latebind.learned.train import predict
from latebind.learned.training_pool import NAME, PROCESS, in_processes, side_by_side, train_all
from latebind.learned.training_process import (
    MOST_PASSES,
    TrainingJob,
    kept_network,
    on_threads,
    passes_over,
    train_network,
)
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from latebind.repository.tensors import tensor_bytes
from tests.digits import FIT, Built, samples
from tests.forked import FORKS

SHAPE, ROWS, LEARN = (4, 6, 6), 640, 512
ORIGIN = Origin(1, "graph", "weights", "samples", 0, 4_096)


def recorded_job(folder: Path, *, kind: str = "light", presentations: int = 4_096) -> TrainingJob:
    """A folder with activations, and what there is to train from them."""
    stem = ExplorationFolder.open(folder, ORIGIN).activations("relu.1")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, *SHAPE, generator=generator)
    answers = 4.0 * rows.mean(dim=(2, 3))
    allocate_activations(stem, ROWS, SHAPE).copy_(rows)
    mark_complete(stem, answers, answers.argmax(dim=1), learn=LEARN)
    return TrainingJob(str(folder), "relu.1", 1, kind, SHAPE, 4, 0, presentations, threads=1, checkpoint_seconds=0.02)


def weights(job: TrainingJob) -> dict[str, Tensor]:
    network = kept_network(job)
    assert network is not None
    return network.tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def wait_until(true: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_a_training_killed_in_the_middle_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = recorded_job(tmp_path / "whole", presentations=8_000)
    broken = recorded_job(tmp_path / "broken", presentations=8_000)
    train_network(whole, lambda share: None)
    checkpoint = ExplorationFolder(tmp_path / "broken").checkpoint("relu.1", "light")
    nothing, held = os.pipe()  # it ends where nobody holds the other side
    told_here, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tells.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # it is a few steps ahead of whoever reads, no more
    with told_here:
        with tells:
            streams = nothing, tells.fileno(), 2
            process = FORKS.fork(PROCESS, [msgspec.json.encode(broken).decode()], name=NAME, standard=streams)
        while not checkpoint.is_file():
            assert told_here.recv(100), "it ended before it had saved anything"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    os.close(nothing)
    os.close(held)
    assert kept_network(broken) is None
    told: list[float] = []
    train_network(broken, told.append)
    assert told[0] > 1.5 / (8_000 / 128)  # it went on: the first step is not the first of all
    assert same(weights(whole), weights(broken))
    assert not checkpoint.exists()


def test_a_checkpoint_of_other_rows_or_a_torn_one_is_left_aside(tmp_path: Path) -> None:
    job = recorded_job(tmp_path / "one", presentations=1_024)
    checkpoint = ExplorationFolder(tmp_path / "one").checkpoint("relu.1", "light")
    train_network(job, lambda share: None)
    wanted = weights(job)
    other = tensor_bytes({"at": torch.tensor([1, 2])})
    for data in (b"", b"torn", other[:20], other):
        checkpoint.write_bytes(data)
        train_network(job, lambda share: None)
        assert same(weights(job), wanted)


def test_a_selector_learns_from_rows_that_are_new_to_the_predictor_and_those_are_kept(tmp_path: Path) -> None:
    job = recorded_job(tmp_path, kind="plain", presentations=16_000)
    train_network(job, lambda share: None)
    network, found = kept_network(job), load_recorded(ExplorationFolder(tmp_path).activations("relu.1"), SHAPE)
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


def test_a_job_says_how_much_of_the_loss_is_distilled(tmp_path: Path) -> None:
    job = recorded_job(tmp_path, kind="plain", presentations=512)
    found = []
    for share in (0.0, 1.0):
        train_network(replace(job, distillation=share), lambda share: None)
        found.append(weights(job))
    assert not same(*found)


def test_rows_are_seen_again_until_there_are_enough_but_not_for_ever() -> None:
    assert [passes_over(rows, 1_000) for rows in (1, 100, 10_000)] == [MOST_PASSES, 10, 1]


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_weights_do_not_depend_on_where_a_network_was_trained(tmp_path: Path) -> None:
    here = [recorded_job(tmp_path / "here", kind=kind, presentations=1_024) for kind in ("plain", "light")]
    there = [recorded_job(tmp_path / "there", kind=kind, presentations=1_024) for kind in ("plain", "light")]
    told: list[dict[int, float]] = []
    in_processes(there, [1.0, 2.0], forks=FORKS, processes=2, tell=told.append)
    assert (told[0], told[-1]) == ({1: 0.0}, {0: 1.0, 1: 1.0})
    told.clear()

    def hear(shares: dict[int, float]) -> None:
        assert trainers(psutil.Process()) == []
        told.append(shares)

    train_all(
        here, [1_000.0, 0.1], forks=FORKS, processes=2, tell=hear
    )  # where one takes nearly all, two processes save nothing
    assert told[-1] == {0: 1.0, 1: 1.0}
    for one, other in zip(here, there, strict=True):
        assert same(weights(one), weights(other))


def test_a_trainer_that_is_killed_says_how_to_go_on_and_the_others_end(tmp_path: Path) -> None:
    jobs = [recorded_job(tmp_path, kind=kind, presentations=20_000) for kind in ("light", "plain")]

    def kill_once_it_learns(shares: dict[int, float]) -> None:
        if 0.0 < shares.get(0, 0.0) < 1.0:
            max(trainers(psutil.Process()), key=lambda one: (one.create_time(), one.pid)).kill()  # it began last

    with pytest.raises(TrainingStopped, match=r"light behind stage 1 .* memory.* run the same build again to go on"):
        train_all(jobs, [100.0, 100.0], forks=FORKS, processes=2, tell=kill_once_it_learns)
    assert trainers(psutil.Process()) == []


def test_trainers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    job = recorded_job(tmp_path, presentations=8_000)
    script = (
        "import sys, msgspec; from latebind.learned.training_pool import in_processes; "
        "from latebind.learned.training_process import TrainingJob; from latebind.forks.client import ForkServer; "
        "job = msgspec.json.decode(sys.argv[1], type=TrainingJob); "
        "in_processes([job], [1.0], forks=ForkServer(), processes=1, tell=lambda shares: print(shares, flush=True))"
    )
    checkpoint = ExplorationFolder(tmp_path).checkpoint("relu.1", "light")
    words = [sys.executable, "-c", script, msgspec.json.encode(job).decode()]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        while not checkpoint.is_file():
            assert parent.stdout.readline(), "it ended before it had saved anything"
        (trainer,) = trainers(psutil.Process(parent.pid))
        parent.kill()
    wait_until(lambda: not trainer.is_running())
    assert kept_network(job) is None


def trainers(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children(recursive=True) if one.name() == NAME]


def test_activations_that_are_not_whole_are_not_taken(tmp_path: Path) -> None:
    job = recorded_job(tmp_path)
    stem = ExplorationFolder(tmp_path).activations("relu.1")
    found = load_recorded(stem, SHAPE)
    assert found is not None
    assert found.activations.is_contiguous(memory_format=torch.channels_last)
    assert len(found.seen().activations) == LEARN
    assert len(found.unseen().answers) == ROWS - LEARN
    assert stem.with_suffix(".bin").stat().st_size == 2 * ROWS * math.prod(SHAPE)
    os.truncate(stem.with_suffix(".bin"), 100)
    assert load_recorded(stem, SHAPE) is None
    with pytest.raises(ConfigError, match=r"no activations of 'relu\.1'"):
        train_network(job, lambda share: None)


def test_rows_that_a_predictor_learns_from_and_those_new_to_it_keep_their_labels(tmp_path: Path) -> None:
    recorded_job(tmp_path)
    found = load_recorded(ExplorationFolder(tmp_path).activations("relu.1"), SHAPE)
    assert found is not None
    for lesson, rows in ((found.seen(), slice(0, LEARN)), (found.unseen(), slice(LEARN, ROWS))):
        assert torch.equal(lesson.activations, found.activations[rows])
        assert torch.equal(lesson.answers, found.answers[rows])
        assert lesson.labels is not None
        assert torch.equal(lesson.labels, found.answers[rows].argmax(dim=1))


def test_a_disk_without_room_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make room, or give less with --disk"):
        allocate_activations(tmp_path / "relu", 1 << 50, SHAPE)
    assert list(tmp_path.iterdir()) == []


def test_activations_of_each_boundary_are_forgotten_by_themselves(tmp_path: Path) -> None:
    exploration = ExplorationFolder.open(tmp_path, ORIGIN)
    for boundary in ("relu.1", "relu.2"):
        allocate_activations(exploration.activations(boundary), 3, SHAPE).fill_(1.0)
        mark_complete(exploration.activations(boundary), torch.ones(3, 4), None, learn=2)
    assert exploration.recorded_bytes() > 2 * 3 * 2 * math.prod(SHAPE)
    exploration.delete_activations_except({"relu.1"})
    assert load_recorded(exploration.activations("relu.1"), SHAPE) is not None
    assert load_recorded(exploration.activations("relu.2"), SHAPE) is None
    delete_recorded(exploration.activations("relu.1"))
    assert exploration.recorded_bytes() == 0


def test_a_torn_network_is_none(tmp_path: Path) -> None:
    exploration = ExplorationFolder.open(tmp_path, ORIGIN)
    exploration.keep_network("relu.1", "light", {"x": torch.ones(3)})
    (path,) = (tmp_path / "networks").iterdir()
    path.write_bytes(b"torn")
    assert exploration.network("relu.1", "light") is None


def test_an_origin_is_all_that_networks_come_from(built: Built) -> None:
    rows = Samples((built.unseen[:4],))
    found = Origin.of(built.directory, rows, seed=1, presentations=2)
    assert (found.seed, found.presentations, found.samples) == (1, 2, fingerprint(rows))
    assert found.graph != found.weights


@pytest.mark.parametrize(
    "other", [replace(ORIGIN, seed=1), replace(ORIGIN, weights="others"), replace(ORIGIN, format=0)]
)
def test_networks_of_another_origin_go(other: Origin, tmp_path: Path) -> None:
    ExplorationFolder.open(tmp_path, ORIGIN).keep_network("a/b", "fc(16)", {"x": torch.ones(3)})
    assert ExplorationFolder.open(tmp_path, ORIGIN).network("a/b", "fc(16)") is not None
    assert ExplorationFolder.open(tmp_path, other).network("a/b", "fc(16)") is None


def test_a_fingerprint_tells_rows_and_labels_apart() -> None:
    rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    many, last = torch.zeros(3_000, 2), torch.zeros(3_000, 2)
    last[-1] = 1.0
    given = (Samples((rows,)), Samples((rows,), labels), Samples((rows + 1,), labels), Samples((rows.T,)))
    found = {fingerprint(one) for one in (*given, Samples((many,)), Samples((last,)))}
    assert len(found) == 6
    assert fingerprint(Samples((rows.clone(),))) in found


def test_so_many_trainings_run_at_once_as_there_are_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert side_by_side(1) == (1, cores)
    assert side_by_side(100) == (cores, 1)


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
    assert second.comparison()[0]["rule"] == "search on samples"
    assert {"full programme", "hit-rate greedy", "only plain", "only fc(8)"} <= {
        str(row["rule"]) for row in second.comparison()
    }
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
