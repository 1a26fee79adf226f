"""Workloads: what a file may say, what is drawn of it, and that a sample is like the whole."""

from pathlib import Path

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.fleet import MachineKind, Requests
from latebind.simulation.cluster.population import population_of
from latebind.simulation.cluster.workload import Workload, read_workload

TEXT = """
hop = 0.001

[[machines]]
name = "small"
memory = "2GB"

[[machines]]
name = "large"
memory = 8_000_000_000
workers = 4
speed = 2.0

[[models]]
name = "vision"
count = 30
size = { median = "100MB", spread = 0.5 }
seconds = { median = 0.005, spread = 0.3 }
stages = 4
hits = [0.25, 0.25]
deadline = 0.1
times = 2

[[models]]
name = "text"
size = "1GB"
deadline = 0.5
share = 0

[traffic]
rate = 200
duration = 100
"""


def written(tmp_path: Path, text: str = TEXT) -> Path:
    file = tmp_path / "workload.toml"
    file.write_text(text)
    return file


def workload(tmp_path: Path) -> Workload:
    return read_workload(written(tmp_path))


def trace(tmp_path: Path, counts: list[list[int]]) -> Path:
    file = tmp_path / "trace.npz"
    np.savez(file, counts=np.array(counts), trigger=np.array(["http"] * len(counts)))
    return file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rate = 200", "rat = 200", r"unknown field `rat` - at `\$.traffic`; it may have rate, duration, trace"),
        ("workers = 4", 'workers = "4"', r"machines\[1\].workers`; it may have name, memory, workers"),
        ("workers = 4", "count = 4", "unknown field `count`"),
        ('"2GB"', '"2XB"', "machines 'small': memory '2XB': write a size such as 500MB"),
        ('"2GB"', "0", r"Expected `int` >= 1 - at `\$.machines\[0\].memory`"),
        ("speed = 2.0", "speed = 0.0", r"Expected `float` > 0.0 - at `\$.machines\[1\].speed`"),
        ("deadline = 0.5", "", "models 'text': give a deadline in seconds"),
        ("hits = [0.25, 0.25]", "hits = [0.75, 0.5]", "hits are .* together at most 1"),
        ("hits = [0.25, 0.25]", "hits = [nan]", "hits are .* together at most 1"),
        ("hits = [0.25, 0.25]", "hits = [0.25, -0.25]", "hits are .* together at most 1"),
        ("hits = [0.25, 0.25]", "hits = [0.1, 0.1, 0.1, 0.1]", "4 shares and there are 4 stages"),
        ("share = 0", "share = 0.5", "give each family one, or none"),
        ('name = "text"', 'name = "vision"', "two families of models have the same name"),
        ("rate = 200", "rate = 0", "traffic has no rate"),
        ("rate = 200", 'trace = "nowhere.npz"', "nowhere.npz is no trace"),
        ("hop = 0.001", "hop = ", "workload.toml: "),
        ("share = 0", 'lengths = "nowhere.txt"', "nowhere.txt has no lengths .*: write 24, 8,16,64"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        population_of(read_workload(written(tmp_path, TEXT.replace(old, new, 1))))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml cannot be read: No such file"):
        read_workload(tmp_path / "none.toml")


def requests_of(told: Workload, seed: int) -> Requests:
    return population_of(told).requests(seed=seed)


def test_models_and_machines_are_what_the_file_says(tmp_path: Path) -> None:
    told = workload(tmp_path)
    small, large = MachineKind("small", 2_000_000_000), MachineKind("large", 8_000_000_000, 4, speed=2.0)
    assert told.machines == (small, large)
    models = population_of(told).models
    assert [model.served.spec.name for model in models][-2:] == ["vision-29", "text"]
    vision, text = models[0], models[-1]
    assert text.served.footprint.penalty == pytest.approx(1.1), "1 GB at 1 GB/s and 0.1 s to begin"
    assert text.allowed == 0.5
    assert vision.allowed == pytest.approx(0.1 + 2 * vision.served.costs.remaining(0, 1))
    assert vision.served.costs.remaining(0, 10) == pytest.approx(vision.served.costs.remaining(0, 1) * 3.7)
    assert vision.served.costs.hit_rates == {0: 0.25, 1: 0.25}
    assert len({model.served.footprint.size for model in models}) == 31
    assert models == population_of(told).models


def test_requests_come_at_the_rate_and_leave_at_the_hit_rates(tmp_path: Path) -> None:
    found = requests_of(workload(tmp_path), 1)
    assert len(found) == pytest.approx(20_000, rel=0.05)
    assert np.all(np.diff(found.times) >= 0)
    vision = found.models < 30
    assert (np.bincount(found.leaves[vision]) / vision.sum()).tolist() == pytest.approx([0.25, 0.25, 0, 0.5], abs=0.02)
    assert set(found.leaves[~vision].tolist()) == {0}
    assert found.times.tolist() == requests_of(workload(tmp_path), 1).times.tolist()
    assert found.times.tolist() != requests_of(workload(tmp_path), 2).times.tolist()


def test_families_get_their_shares_of_the_traffic(tmp_path: Path) -> None:
    text = TEXT.replace("share = 0", "share = 3").replace("stages = 4", "stages = 4\nshare = 1")
    found = requests_of(read_workload(written(tmp_path, text)), 1)
    assert np.mean(found.models == 30) == pytest.approx(0.75, abs=0.02)
    assert len(found) == pytest.approx(20_000, rel=0.05)


def test_a_trace_is_taken_as_it_is_or_scaled_to_a_rate_and_again_for_more_models(tmp_path: Path) -> None:
    trace(tmp_path, [[3, 0, 5], [0, 7, 0]])
    text = TEXT.replace("rate = 200", 'trace = "trace.npz"').replace("duration = 100", "duration = 180")
    found = requests_of(read_workload(written(tmp_path, text.replace("count = 30", "count = 1"))), 1)
    minutes = [np.bincount(found.models[found.times // 60 == minute], minlength=2).tolist() for minute in range(3)]
    assert sorted(zip(*minutes, strict=True)) == [(0, 7, 0), (3, 0, 5)]
    found = requests_of(read_workload(written(tmp_path, text.replace("[traffic]", "[traffic]\nrate = 200"))), 1)
    assert len(found) == pytest.approx(200 * 180, rel=0.05)
    assert np.all(np.bincount(found.models, minlength=31) > 0)


def test_rows_of_a_family_are_as_long_as_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("10\n10\n40\n")
    text = TEXT.replace('name = "text"\n', 'name = "text"\nlengths = "lengths.txt"\nseconds = 0.02\nonce = 0.5\n')
    population = population_of(read_workload(written(tmp_path, text)))
    model, found = population.models[-1], population.requests(seed=1)
    long = np.array([length for length, _ in model.rows])[found.rows[found.models == 30]]
    assert pytest.approx({length: np.mean(long == length) for length in (10, 40)}, abs=0.06) == {10: 2 / 3, 40: 1 / 3}
    assert model.served.costs.remaining(0, 1, 20) == pytest.approx(0.02), "20 is the mean"
    assert model.served.costs.remaining(0, 4, 40) == pytest.approx(0.02 * (0.5 + 0.5 * 4 * 2))
    assert model.alone() == pytest.approx(0.02)
    assert model.served.spec.dims[0].most == 40
    assert not found.rows[found.models < 30].any()
