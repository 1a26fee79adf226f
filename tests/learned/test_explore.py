"""Exploration on disk: what is trained stays, a kill costs little, and nothing is taken for what it is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, TrainingStopped
from latebind.learned.build import build_caches
from latebind.learned.explored import Exploration, Origin, explored_folder, fingerprint, forget_explored
from latebind.learned.recorded import complete, make_room, recorded
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples
from latebind.learned.stored import read_caches
from latebind.learned.trainer import Order, kept_network, train_network
from latebind.learned.training import in_processes, side_by_side
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from latebind.repository.tensors import tensor_bytes
from tests.digits import Built

SHAPE, ROWS, LEARN = (4, 6, 6), 640, 512
ORIGIN = Origin(1, "graph", "weights", "samples", 0, 4_096)


def recorded_order(folder: Path, *, kind: str = "light", presentations: int = 4_096) -> Order:
    """A folder with activations, and what there is to train from them."""
    stem = Exploration.open(folder, ORIGIN).activations("relu.1")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, *SHAPE, generator=generator)
    answers = 4.0 * rows.mean(dim=(2, 3))
    make_room(stem, ROWS, SHAPE).copy_(rows)
    complete(stem, answers, answers.argmax(dim=1), learn=LEARN)
    return Order(str(folder), "relu.1", 1, kind, SHAPE, 4, 0, presentations, threads=1, checkpoint_seconds=0.02)


def weights(order: Order) -> dict[str, Tensor]:
    network = kept_network(order)
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
    whole = recorded_order(tmp_path / "whole", presentations=8_000)
    broken = recorded_order(tmp_path / "broken", presentations=8_000)
    train_network(whole, lambda share: None)
    process = subprocess.Popen(
        [sys.executable, "-m", "latebind.learned.trainer", msgspec.json.encode(broken).decode()], stdin=subprocess.PIPE
    )
    checkpoint = Exploration(tmp_path / "broken").checkpoint("relu.1", "light")
    wait_until(checkpoint.is_file)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert kept_network(broken) is None
    told: list[float] = []
    train_network(broken, told.append)
    assert told[0] > 1.5 / (8_000 / 128)  # it went on: the first step is not the first of all
    assert same(weights(whole), weights(broken))
    assert not checkpoint.exists()


def test_a_checkpoint_of_other_rows_or_a_torn_one_is_left_aside(tmp_path: Path) -> None:
    order = recorded_order(tmp_path / "one", presentations=1_024)
    checkpoint = Exploration(tmp_path / "one").checkpoint("relu.1", "light")
    train_network(order, lambda share: None)
    wanted = weights(order)
    other = tensor_bytes({"at": torch.tensor([1, 2])})
    for data in (b"", b"torn", other[:20], other):
        checkpoint.write_bytes(data)
        train_network(order, lambda share: None)
        assert same(weights(order), wanted)


def test_weights_do_not_depend_on_where_a_network_was_trained(tmp_path: Path) -> None:
    here = [recorded_order(tmp_path / "here", kind=kind, presentations=1_024) for kind in ("plain", "light")]
    there = [recorded_order(tmp_path / "there", kind=kind, presentations=1_024) for kind in ("plain", "light")]
    told: list[dict[int, float]] = []
    in_processes(there, [1.0, 2.0], processes=2, tell=told.append)
    assert told[-1] == {0: 1.0, 1: 1.0}
    for one, other in zip(here, there, strict=True):
        train_network(one, lambda share: None)
        assert same(weights(one), weights(other))


def test_a_trainer_that_is_killed_says_how_to_go_on(tmp_path: Path) -> None:
    order = recorded_order(tmp_path, presentations=8_000)

    def kill_once_it_learns(shares: dict[int, float]) -> None:
        if 0.0 < shares[0] < 1.0:
            os.kill(int(children(os.getpid())[0]), signal.SIGKILL)

    with pytest.raises(TrainingStopped, match=r"light behind stage 1 .* memory.* run the same build again to go on"):
        in_processes([order], [1.0], processes=1, tell=kill_once_it_learns)
    assert children(os.getpid()) == []


def test_trainers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    order = recorded_order(tmp_path, presentations=8_000)
    script = (
        "import sys, msgspec; from latebind.learned.training import in_processes; "
        "from latebind.learned.trainer import Order; "
        "order = msgspec.json.decode(sys.argv[1], type=Order); "
        "in_processes([order], [1.0], processes=1, tell=lambda shares: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, msgspec.json.encode(order).decode()])
    wait_until(lambda: bool(children(parent.pid)))
    (trainer,) = children(parent.pid)
    wait_until(Exploration(tmp_path).checkpoint("relu.1", "light").is_file)
    parent.kill()
    parent.wait()
    wait_until(lambda: not running(trainer), seconds=10.0)
    assert kept_network(order) is None


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_activations_that_are_not_whole_are_not_taken(tmp_path: Path) -> None:
    order = recorded_order(tmp_path)
    stem = Exploration(tmp_path).activations("relu.1")
    found = recorded(stem, SHAPE)
    assert found is not None
    assert found.activations.is_contiguous(memory_format=torch.channels_last)
    assert len(found.seen().activations) == LEARN
    assert len(found.unseen().answers) == ROWS - LEARN
    os.truncate(stem.with_suffix(".bin"), 100)
    assert recorded(stem, SHAPE) is None
    with pytest.raises(ConfigError, match=r"no activations of 'relu\.1'"):
        train_network(order, lambda share: None)


@pytest.mark.parametrize(
    "other", [replace(ORIGIN, seed=1), replace(ORIGIN, weights="others"), replace(ORIGIN, format=0)]
)
def test_networks_of_another_origin_go(other: Origin, tmp_path: Path) -> None:
    Exploration.open(tmp_path, ORIGIN).keep_network("a/b", "fc(16)", {"x": torch.ones(3)})
    assert Exploration.open(tmp_path, ORIGIN).network("a/b", "fc(16)") is not None
    assert Exploration.open(tmp_path, other).network("a/b", "fc(16)") is None


def test_a_fingerprint_tells_rows_and_labels_apart() -> None:
    rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    found = {fingerprint(one) for one in (Samples((rows,)), Samples((rows,), labels), Samples((rows + 1,), labels))}
    assert len(found) == 3
    assert fingerprint(Samples((rows.clone(),))) in found


def test_so_many_trainings_run_at_once_as_there_are_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert side_by_side(1) == (1, cores)
    assert side_by_side(100) == (cores, 1)


def explore(
    directory: ModelDirectory, built: Built, kinds: tuple[str, ...], *, disk: int = 1 << 30, cache_bytes: int = 1 << 20
) -> CacheReport:
    return build_caches(
        directory,
        built.fit,
        built.calibrate,
        fidelity=0.9,
        confidence=0.9,
        candidates=2,
        kinds=kinds,
        presentations=1_500,
        disk=disk,
        cache_bytes=cache_bytes,
        explored=explored_folder(directory.path),
    )


def test_another_build_trains_only_what_is_missing_and_composes_within_the_memory(built: Built, tmp_path: Path) -> None:
    files = {name: built.directory.read(name) for name in built.directory.files}
    directory = ModelDirectory.create(tmp_path / "digits" / "1", files)
    folder = explored_folder(directory.path)
    first = explore(directory, built, ("fc(8)",))
    networks = {path: path.stat().st_mtime_ns for path in (folder / "networks").iterdir()}
    assert len(networks) == len(first.tried) == 2
    assert first.notes == ()
    assert list((folder / "activations").iterdir()) == list((folder / "checkpoints").iterdir()) == []
    assert [one.name for one in Repository(tmp_path).models()] == ["digits"]  # the folder beside it is no version

    # half of what the later boundary needs, so it is alone and learns from less
    second = explore(first.directory, built, ("fc(8)", "plain"), disk=128 * 8 * 8 * 2 * 450, cache_bytes=50_000)
    assert second.notes[0] == f"{len(networks)} of {len(second.tried)} networks taken from an earlier run"
    assert any("the disk had room for" in note for note in second.notes[1:])
    assert {path: path.stat().st_mtime_ns for path in networks} == networks
    assert [one.kind for one in second.tried].count("fc(8)") == len(networks)
    again = {(one.stage, one.kind): one.fidelity for one in second.tried}
    assert {(one.stage, one.kind): one.fidelity for one in first.tried}.items() <= again.items()

    caches = read_caches(second.directory)
    assert caches is not None
    assert {one.stage for one in caches.every} == {one.stage for one in second.tried}
    assert {lookup.name for lookup in second.lookups} <= {one.name for one in caches.every}
    assert sum(lookup.bytes for lookup in second.lookups) <= 50_000
    assert second.comparison()[0]["rule"] == "search on samples"
    assert {"full programme", "hit-rate greedy", "only plain", "only fc(8)"} <= {
        str(row["rule"]) for row in second.comparison()
    }
    forget_explored(folder)
    assert not folder.exists()


def test_variants_tell_what_each_gives_alone_at_the_target(built: Built) -> None:
    rows = built.report.variants()
    assert len(rows) == len(built.report.tried)
    for row in rows:
        assert 0.0 <= float(str(row["hit rate"])) <= 1.0
        assert float(str(row["accuracy"])) >= built.report.target
    assert {row["used"] for row in rows} <= {"yes", "no"}
    assert sum(row["used"] == "yes" for row in rows) == len(built.report.lookups)
