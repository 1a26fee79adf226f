"""LazyBatching's evaluation on the simulated accelerator: what it says of small runs, and the ideal beside it."""

from pathlib import Path

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from research.lazybatching import parts
from research.lazybatching.bound import bounds, least_seconds, shares_of
from research.lazybatching.simulated import Plan, Result, Scene, read_sentences, run, sides
from tests.research.conftest import quiet

SCENE = Scene(read_sentences(None))


@pytest.fixture(scope="module")
def runs() -> list[Result]:
    plan = Plan(SCENE, seeds=2, requests=400, processes=2)
    return plan.run(parts.load_tasks(plan, ("resnet", "transformer"), (500.0,)), quiet)


def test_each_policy_is_run_with_each_seed_and_again_alike(runs: list[Result]) -> None:
    labels = [side.label for side in sides(recurrent=True)]
    of = [run.task for run in runs if run.task.networks == ("transformer",)]
    assert sorted(task.side.label for task in of) == sorted(labels * 2)
    assert {task.seed for task in of} == {0, 1}
    assert len(set(labels)) == len(labels)
    assert run(runs[-1].task, SCENE) == runs[-1]


def test_lazy_plus_is_told_against_every_baseline(runs: list[Result]) -> None:
    (row,) = [r for r in parts.ratio_rows(runs) if r["network"] == "transformer" and r["policy"] == "lazy+"]
    untuned, tuned, every, early = (float(str(row[name]).split()[0]) for name in parts.BASELINES)
    assert untuned > tuned >= every >= early > 1.0
    (cnn,) = [r for r in parts.ratio_rows(runs) if r["network"] == "resnet" and r["policy"] == "lazy+"]
    assert cnn["best of all, leaving early"] == ""
    assert {row["network"] for row in parts.summary_rows(runs)} == {"resnet", "transformer"}


def test_lazy_plus_is_between_graphb_and_the_ideal_and_batches_of_steps_gain_what_they_may() -> None:
    """Where a step costs the same for all, requests never wait, and where it is linear, sharing gains nothing."""
    found = bounds(Plan(SCENE, seeds=2, requests=300, processes=1), (0.5,), quiet)
    for one in found:
        assert (one.least < one.ours).all()
        assert one.ours.mean() < one.graph.mean()
    assert found[-1].least == pytest.approx(found[-1].alone, rel=0.1)
    assert found[0].ours.mean() > 1.5 * found[0].alone


def test_lengths_come_from_the_one_array_of_pairs_in_a_file_or_the_one_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    np.savez(file, names=np.arange(3), pairs=np.array([[3, 4], [90, 5], [6, 0], [7, 8]]))
    found = read_sentences(str(file))
    assert found.profiled == (4, 5)
    assert list(found.asked) == [(6, 1), (7, 8)]
    assert found.told == f"4 pairs of pairs in {file}, 1 of them cut to 50 words"
    np.savez(file, news=np.array([[20, 21], [30, 31]]), captions=np.array([[3, 4], [5, 6]]), names=np.arange(3))
    assert read_sentences(f"{file}:captions").profiled == (4,)
    for given in (str(file), f"{file}:names"):  # none is taken in silence
        with pytest.raises(ConfigError, match=r"name an array .* it has captions, news"):
            read_sentences(given)
    np.savez(file, pairs=np.array([[3.0, 4.0], [5.0, 6.0]]))
    with pytest.raises(ConfigError, match="words in and words out"):
        read_sentences(str(file))
    with pytest.raises(ConfigError, match=r"is no \.npz file"):
        read_sentences(str(tmp_path / "none.npz"))


@pytest.mark.parametrize(
    ("times", "work", "shares", "least"),
    [
        ([0.0, 5.0], [2.0, 3.0], [1.0], [2.0, 3.0]),  # alone
        ([0.0, 1.0, 1.5], [4.0, 1.0, 10.0], [1.0], [5.0, 1.0, 13.5]),  # the shortest first
        ([0.0, 0.0], [1.0, 2.0], [1.0, 0.5], [1.0, 2.5]),  # together
    ],
)
def test_the_least_is_the_shortest_remaining_work_first_and_shared(
    times: list[float], work: list[float], shares: list[float], least: list[float]
) -> None:
    assert least_seconds(times, work, shares) == pytest.approx(least)


def test_together_they_get_done_what_batches_do() -> None:
    costs = {1: 1.0, 2: 1.25, 3: 1.5, 4: 1.6}
    shares = shares_of(costs.__getitem__, 4)
    assert sum(shares) == pytest.approx(4 / 1.6)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares_of(lambda n: float(n * n), 8) == [1.0]  # larger batches that are no quicker share nothing
