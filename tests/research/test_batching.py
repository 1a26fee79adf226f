"""The batching bench: small runs of it, and what it says of them."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.bench.subject import Setting, Subject
from latebind.domain.errors import ConfigError
from latebind.program.stored import StoredModel
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.__main__ import app
from research.lazybatching import live, parts, report
from research.lazybatching.bound import bound_rows, bounds
from research.lazybatching.live_report import OURS, TUNED, Block, Floor, LiveReport
from research.lazybatching.scene import Scene, measured_models
from research.lazybatching.sentences import read_sentences
from research.lazybatching.sides import Group, sides
from research.lazybatching.simulated import Result, Task, run
from research.live.sides import SERIAL, chosen
from research.live.tuning import tuned

SCENE = Scene(read_sentences(None))


def quiet(text: str, share: float) -> None:
    del text, share


@pytest.fixture(scope="module")
def runs() -> list[Result]:
    plan = parts.Plan(SCENE, seeds=2, requests=400, processes=2)
    return parts.loads(plan, ("resnet", "transformer"), (500.0,), quiet)


def test_each_policy_is_run_with_each_seed(runs: list[Result]) -> None:
    labels = [side.label for side in sides(recurrent=True)]
    of = [run.task for run in runs if run.task.networks == ("transformer",)]
    assert sorted(task.side.label for task in of) == sorted(labels * 2)
    assert {task.seed for task in of} == {0, 1}
    assert len(set(labels)) == len(labels)


def test_the_same_task_gives_the_same_run(runs: list[Result]) -> None:
    assert run(runs[-1].task, SCENE) == runs[-1]


def test_lazy_plus_is_told_against_every_baseline(runs: list[Result]) -> None:
    (row,) = [r for r in report.ratio_rows(runs) if r["network"] == "transformer" and r["policy"] == "lazy+"]
    untuned, tuned, every, early = (float(str(row[name]).split()[0]) for name in report.BASELINES)
    assert untuned > tuned >= every >= early > 1.0
    (cnn,) = [r for r in report.ratio_rows(runs) if r["network"] == "resnet" and r["policy"] == "lazy+"]
    assert cnn["best of all, leaving early"] == ""
    assert {row["network"] for row in report.summary_rows(runs)} == {"resnet", "transformer"}


def test_a_ratio_has_an_interval_over_the_seeds(runs: list[Result]) -> None:
    (row,) = [r for r in report.ratio_rows(runs) if r["network"] == "resnet" and r["policy"] == "lazy+"]
    value, low, high = (float(part.strip("[],")) for part in str(row["best of 5 ms or more"]).split())
    ((_, cell),) = [one for one in report.cells(runs).items() if one[0][0] == ("resnet",)]
    best = min((figure for figure in cell.values() if figure.group is Group.WINDOW), key=lambda one: one.mean)
    each = sorted(best.means / cell["lazy+"].means)
    assert value == pytest.approx(best.mean / cell["lazy+"].mean, abs=1e-3)
    assert (low, high) == pytest.approx((each[0], each[-1]), abs=1e-3)


def test_each_network_on_a_shared_worker_has_its_p99_told_against_the_best_baseline() -> None:
    several = [side for side in sides(recurrent=True) if side.label in ("GraphB(0, 64)", "GraphB(0, 8)", "lazy+")]
    found = [run(Task(("resnet", "gnmt"), 100.0, side, seed, 100), SCENE) for side in several for seed in (0, 1)]
    (row,) = report.tail_rows(found)
    ((_, cell),) = report.cells(found).items()
    best = min((label for label in cell if label != "lazy+"), key=lambda label: cell[label].mean)
    theirs, ours = ([run.models["GNMT"][1] for run in found if run.task.side.label == one] for one in (best, "lazy+"))
    assert (row["than"], row["policy"]) == (best, "lazy+")
    assert float(str(row["GNMT"]).split()[0]) == pytest.approx(sum(theirs) / sum(ours), abs=1e-3)


def test_a_baseline_that_does_not_keep_up_is_marked() -> None:
    tasks = [Task(("gnmt",), 4000.0, side, 0, 300) for side in sides(recurrent=True)]
    found = [run(task, SCENE) for task in tasks if task.side.group is not Group.OTHER]
    assert all(str(row["best of 5 ms or more"]).endswith(report.PAST) for row in report.ratio_rows(found))


def test_networks_as_one_stage_run_alike_under_policies_that_never_come_between(runs: list[Result]) -> None:
    (zero,) = [side for side in sides(recurrent=False) if side.label == "GraphB(0, 64)"]
    whole = run(Task(("resnet",), 900.0, zero, 3, 300), SCENE)
    as_ours = type(zero)(zero.label, Group.OURS, zero.policy)
    staged = run(Task(("resnet",), 900.0, as_ours, 3, 300), SCENE)
    assert (whole.mean, whole.p99) == pytest.approx((staged.mean, staged.p99))


def test_lazy_plus_is_between_graphb_and_the_ideal_and_batches_of_steps_gain_what_they_may() -> None:
    """Where a step costs the same for all, requests never wait, and where it is linear, sharing gains nothing."""
    plan = parts.Plan(Scene(read_sentences(None)), seeds=2, requests=300, processes=1)
    found = bounds(plan, (0.5,), quiet)
    for one in found:
        assert (one.least < one.ours).all()
        assert one.ours.mean() < one.graph.mean()
    assert found[-1].least == pytest.approx(found[-1].alone, rel=0.1)
    assert found[0].ours.mean() > 1.5 * found[0].alone
    rows = bound_rows(found)
    assert [row["fixed share of a step"] for row in rows] == ["0%", "20%", "40%", "60%", "80%", "100%"]


def test_the_command_tells_what_could_ideally_be_saved_and_of_which_lengths(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    asked = ["batching", "--part", "bound", "--load", "0.5", "--seeds", "1", "--requests", "60"]
    result = CliRunner().invoke(app, [*asked, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "shortest first, all known" in file.read_text()
    assert "lengths: 10,000 pairs drawn like those of news" in result.output


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
    assert read_sentences(f"{file}:news").profiled == (21,)
    with pytest.raises(ConfigError, match=r"no array 'names' .*it has captions, news"):
        read_sentences(f"{file}:names")


def test_the_command_prints_latencies_ratios_and_their_means(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.html"
    some = ["--seeds", "1", "--requests", "80", "--processes", "1"]
    arguments = ["batching", "--part", "loads", "--network", "transformer", "--load", "200", *some]
    found = CliRunner().invoke(app, [*arguments, "--json", str(file), "--page", str(page)])
    assert found.exit_code == 0, found.output
    figures = json.loads(file.read_text())["loads"]
    assert {row["policy"] for row in figures["ratios"]} == {"LazyB", "Oracle", "lazy+", "late"}
    assert "transformer" in page.read_text()


def test_an_unknown_network_is_told() -> None:
    found = CliRunner().invoke(app, ["batching", "--network", "alexnet"])
    assert found.exit_code == 2
    assert "there is no network 'alexnet'" in found.output


def test_models_measured_here_are_simulated_at_multiples_of_what_they_do(models: Path, tmp_path: Path) -> None:
    scene = Scene(read_sentences(None), measured_models(models))
    assert "chain" in scene.measured
    found = parts.measured(parts.Plan(scene, seeds=1, requests=60, processes=1), (0.5, 1.0), quiet)
    loads = {run.task.load for run in found if run.task.networks == ("chain",)}
    assert loads == {round(multiple * scene.capacity("chain"), 1) for multiple in (0.5, 1.0)}
    told = CliRunner().invoke(app, ["batching", "--part", "measured"])
    assert told.exit_code == 2
    assert "--models FOLDER" in told.output


def test_the_best_side_is_chosen_by_the_rounds_that_it_is_not_judged_by() -> None:
    sides = {"a": [1.0, 8.0, 9.0], "b": [5.0, 5.0, 5.0], "c": [6.0, 6.0, 1.0]}
    assert tuned(sides) == ["c", "c", "a"]
    assert tuned({"a": [2.0], "b": [1.0]}) == ["b"]
    assert tuned({"a": [inf, 1.0, 1.0], "b": [3.0, 3.0, 3.0]}) == ["b", "b", "b"]


def test_some_sides_are_chosen_by_name() -> None:
    some = chosen(live.SIDES, ["GraphB(0, 8)"], always=(SERIAL, OURS))
    assert list(some) == [SERIAL, "GraphB(0, 8)", OURS]
    with pytest.raises(ConfigError, match="take some of"):
        chosen(live.SIDES, ["GraphB"])


def test_the_verdict_says_who_is_ahead_and_what_could_be_reached() -> None:
    ours, theirs = (
        Block(np.array([0.02]), [np.array([0.021])], [np.array([0.02])]),
        Block(np.array([0.04]), [np.array([0.05])], [np.array([0.04])]),
    )
    found = LiveReport(
        "net",
        0,
        capacity=100.0,
        allowed=0.1,
        blocks={1.0: {SERIAL: [theirs], OURS: [ours]}},
        floors={1.0: [Floor(np.array([0.01]), np.array([0.012]))]},
    )
    (row,) = found.verdict_rows()
    assert (row["quickest live"], row["simulated"]) == (OURS, OURS)
    assert (row["lazy+ / tuned"], row["lazy+ / tuned, simulated"]) == ("0.50", "0.42")
    assert row["means within 15%"] == "1 of 2"
    assert (row["alone / tuned"], row["least / tuned"]) == ("0.25", "0.30")


def test_live_and_simulated_stand_side_by_side(models: Path) -> None:
    other = "GraphB(0, 8)"
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    (path,) = find_models(models, ["chain"])
    (tensor,) = ModelDirectory.open(path).read_json("model.json", StoredModel).inputs
    plan = live.Plan((0.5,), 1, 0.2, (other,), calibration=0.15)
    found = live.run(Subject(models, "chain", {tensor.name: images}), setting=Setting(paced=0.02), plan=plan)
    assert {row["policy"] for row in found.rows()} == {SERIAL, other, OURS, TUNED}
    blocks = found.blocks[0.5]
    assert len({len(block.live) for some in blocks.values() for block in some}) == 1
    every = [block for some in blocks.values() for block in some]
    assert all(len(run) == len(block.live) for block in every for run in (*block.simulated, *block.told_all))
    assert all(np.isfinite(run).all() for block in every for run in (block.live, *block.simulated, *block.told_all))
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.saturated.values())
