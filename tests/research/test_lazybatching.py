"""LazyBatching's evaluation: what it says of small runs, and policies on live engines."""

from math import inf
from pathlib import Path

import numpy as np
import pytest

from latebind.bench.subject import Setting
from latebind.domain.errors import ConfigError
from research.lazybatching import live, parts
from research.lazybatching.bound import bounds
from research.lazybatching.scene import Scene, measured_models, read_sentences
from research.lazybatching.simulated import Group, Plan, Result, Task, run, sides
from research.live import Played
from research.sides import SERIAL, chosen, chosen_elsewhere
from tests.research.conftest import quiet, subject_of

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


def test_a_ratio_has_an_interval_over_the_seeds(runs: list[Result]) -> None:
    (row,) = [r for r in parts.ratio_rows(runs) if r["network"] == "resnet" and r["policy"] == "lazy+"]
    value, low, high = (float(part.strip("[],")) for part in str(row["best of 5 ms or more"]).split())
    ((_, cell),) = [one for one in parts.cells(runs).items() if one[0][0] == ("resnet",)]
    best = min((figure for figure in cell.values() if figure.group == Group.WINDOW), key=lambda one: one.mean)
    each = sorted(best.means / cell["lazy+"].means)
    assert value == pytest.approx(best.mean / cell["lazy+"].mean, abs=1e-3)
    assert (low, high) == pytest.approx((each[0], each[-1]), abs=1e-3)


def test_each_network_on_a_shared_worker_has_its_p99_told_against_the_best_baseline() -> None:
    several = [side for side in sides(recurrent=True) if side.label in ("GraphB(0, 64)", "GraphB(0, 8)", "lazy+")]
    found = [run(Task(("resnet", "gnmt"), 100.0, side, seed, 100), SCENE) for side in several for seed in (0, 1)]
    (row,) = parts.tail_rows(found)
    ((_, cell),) = parts.cells(found).items()
    best = min((label for label in cell if label != "lazy+"), key=lambda label: cell[label].mean)
    theirs, ours = ([run.models["GNMT"][1] for run in found if run.task.side.label == one] for one in (best, "lazy+"))
    assert (row["than"], row["policy"]) == (best, "lazy+")
    assert float(str(row["GNMT"]).split()[0]) == pytest.approx(sum(theirs) / sum(ours), abs=1e-3)


def test_a_baseline_that_does_not_keep_up_is_marked() -> None:
    tasks = [Task(("gnmt",), 4000.0, side, 0, 300) for side in sides(recurrent=True)]
    found = [run(task, SCENE) for task in tasks if task.side.kinds[0] != Group.OTHER]
    assert all(str(row["best of 5 ms or more"]).endswith(parts.PAST) for row in parts.ratio_rows(found))


def test_lazy_plus_is_between_graphb_and_the_ideal_and_batches_of_steps_gain_what_they_may() -> None:
    """Where a step costs the same for all, requests never wait, and where it is linear, sharing gains nothing."""
    found = bounds(Plan(SCENE, seeds=2, requests=300, processes=1), (0.5,), quiet)
    for one in found:
        assert (one.least < one.ours).all()
        assert one.ours.mean() < one.graph.mean()
    assert found[-1].least == pytest.approx(found[-1].alone, rel=0.1)
    assert found[0].ours.mean() > 1.5 * found[0].alone


def test_lengths_come_from_the_one_array_of_pairs_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    np.savez(file, names=np.arange(3), pairs=np.array([[3, 4], [90, 5], [6, 0], [7, 8]]))
    found = read_sentences(str(file))
    assert found.profiled == (4, 5)
    assert list(found.asked) == [(6, 1), (7, 8)]
    assert found.told == f"4 pairs of pairs in {file}, 1 of them cut to 50 words"
    for lacking in (np.arange(4), np.array([[3.0, 4.0], [5.0, 6.0]])):
        np.savez(file, pairs=lacking)
        with pytest.raises(ConfigError, match="words in and words out"):
            read_sentences(str(file))
    with pytest.raises(ConfigError, match=r"is no \.npz file"):
        read_sentences(str(tmp_path / "none.npz"))


def test_of_several_arrays_of_lengths_one_is_named_and_none_is_taken_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    np.savez(file, news=np.array([[20, 21], [30, 31]]), captions=np.array([[3, 4], [5, 6]]), names=np.arange(3))
    with pytest.raises(ConfigError, match=rf"several arrays .*--lengths {file}:captions; it has captions, news"):
        read_sentences(str(file))
    assert read_sentences(f"{file}:captions").profiled == (4,)
    with pytest.raises(ConfigError, match=r"no array 'names' .*it has captions, news"):
        read_sentences(f"{file}:names")


def test_models_measured_here_are_simulated_at_multiples_of_what_they_do(models: Path) -> None:
    scene = Scene(read_sentences(None), measured_models(models))
    found = parts.measured(Plan(scene, seeds=1, requests=60, processes=1), (0.5, 1.0), quiet)
    loads = {row["load/s"] for row in next(iter(found.tables.values())) if row["network"] == "chain"}
    assert loads == {f"{round(multiple * scene.capacity('chain'), 1):g}" for multiple in (0.5, 1.0)}


def test_the_best_side_is_chosen_by_the_rounds_that_it_is_not_judged_by() -> None:
    sides = {"a": [1.0, 8.0, 9.0], "b": [5.0, 5.0, 5.0], "c": [6.0, 6.0, 1.0]}
    assert chosen_elsewhere(sides) == ["c", "c", "a"]
    assert chosen_elsewhere({"a": [2.0], "b": [1.0]}) == ["b"]
    assert chosen_elsewhere({"a": [inf, 1.0, 1.0], "b": [3.0, 3.0, 3.0]}) == ["b", "b", "b"]


def test_some_sides_are_chosen_by_name() -> None:
    some = chosen(live.SIDES, ["GraphB(0, 8)"], always=(SERIAL, live.OURS))
    assert list(some) == [SERIAL, "GraphB(0, 8)", live.OURS]
    with pytest.raises(ConfigError, match="take some of"):
        chosen(live.SIDES, ["GraphB"])


def test_the_verdict_says_who_is_ahead_and_what_could_be_reached() -> None:
    ours, theirs = (Played(np.array([seconds]), np.array([False])) for seconds in (0.02, 0.04))
    found = live.LiveReport(0, allowed=0.1, blocks={1.0: {SERIAL: [theirs], live.OURS: [ours]}})
    found.floors = {1.0: [(np.array([0.01]), np.array([0.012]))]}
    (row,) = found.verdict_rows()
    assert row["quickest"] == live.OURS
    assert row["lazy+ / tuned"] == "0.50"
    assert (row["alone / tuned"], row["least / tuned"]) == ("0.25", "0.30")


@pytest.mark.parametrize(("model", "other"), [("chain", "GraphB(0, 8)"), ("backwards", "continuous")])
def test_engines_of_all_sides_get_the_same_requests(models: Path, model: str, other: str) -> None:
    plan = live.Plan((0.5,), 1, 0.2, (other,))
    found = live.run(subject_of(models, model), setting=Setting(paced=0.02), plan=plan, progress=quiet)
    assert {row["policy"] for row in found.rows()} == {SERIAL, other, live.OURS, live.TUNED}
    blocks = [block for some in found.blocks[0.5].values() for block in some]
    assert len({len(block.seconds) for block in blocks}) == 1
    assert all(np.isfinite(block.seconds).all() for block in blocks)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.saturated.values())
    ((alone, least),) = found.floors[0.5]
    assert (alone > 0.0).all()
    assert len(alone) == len(least) == len(blocks[0].seconds)
    assert found.others == 0
