"""Elastic batching on the live engine: who takes part, what is told, answers alike."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.bench.subject import Setting, Subject
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.program.stored import StoredModel
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from research.__main__ import app
from research.ebird import live
from research.live.played import Played


def test_baselines_have_all_cores_in_one_worker_or_a_worker_for_each() -> None:
    sides = live.contenders(2)
    waits = [one.side for one in sides.values() if one.kind in live.BASELINES]
    assert {(side.workers, side.threads) for side in waits} == {(1, 2), (2, 1)}
    assert {side.policy.window for side in waits} == {0.0, *live.WINDOWS}
    assert len(live.contenders(1)) < len(sides)


def test_the_best_wait_is_chosen_by_the_other_rounds() -> None:
    report = live.ElasticReport(
        "net", 0, {"5": live.Kind.OPTIMAL_WAIT, "9": live.Kind.OPTIMAL_WAIT, "e": live.Kind.ELASTIC}
    )
    report.allowed, report.spans = 1.0, {0.5: [1.0, 1.0]}
    report.saturated = {"5": [1.0], "9": [1.0], "e": [1.0]}
    seconds = {"5": (0.2, 0.4), "9": (0.4, 0.2), "e": (0.1, 0.1)}
    flags = np.array([True])
    report.played = {
        0.5: {name: [Played(np.array([one]), flags, flags) for one in some] for name, some in seconds.items()}
    }
    (row,) = report.judged_rows()
    assert str(row["mean of optimal wait over it"]).startswith("4.000")
    assert str(row["in time over optimal wait"]).startswith("1.000")


def test_a_side_that_answers_nobody_is_told_and_not_chosen() -> None:
    report = live.ElasticReport(
        "net", 0, {"5": live.Kind.OPTIMAL_WAIT, "9": live.Kind.OPTIMAL_WAIT, "e": live.Kind.ELASTIC}
    )
    report.allowed, report.spans = 1.0, {0.5: [1.0, 1.0]}
    report.saturated = {"5": [1.0], "9": [1.0], "e": [1.0]}
    seconds = {"5": (np.inf, np.inf), "9": (0.4, 0.4), "e": (0.1, 0.1)}
    flags = np.array([True])
    report.played = {
        0.5: {name: [Played(np.array([one]), flags, flags) for one in some] for name, some in seconds.items()}
    }
    waited, *_ = report.rows()
    assert (waited["mean ms"], waited["p99 ms"], waited["in time"]) == ("-", "-", "0.0%")
    (row,) = report.judged_rows()
    assert str(row["mean of optimal wait over it"]).startswith("4.000")


@pytest.mark.parametrize(("curve", "most"), [((1.0, 8.0), 1.0), ((1.0, 4.0), 2.0), ((1.0, 16.0), 1.0)])
def test_a_core_does_the_most_in_the_batches_that_are_best_for_it(curve: tuple[float, float], most: float) -> None:
    vector = TensorSpec("x", "float32", (1,))
    served = ServedModel(ModelSpec("net", "1", (vector,), (vector,), 1, 8), ModelCosts((Curve((1, 8), curve),)))
    assert live.most_answered(served) == pytest.approx(most)


def test_nobody_has_more_in_time_than_fits_by_the_profile_or_by_what_any_side_has_done() -> None:
    report = live.ElasticReport("net", 0, {"a": live.Kind.NO_WAIT, "b": live.Kind.LATE}, alone=0.01, fits=150.0)
    report.saturated = {"a": [1.0, 1.0], "b": [0.9, 0.7]}
    assert report.limit == 150.0
    report.saturated["b"] = [0.5, 0.5]
    assert report.limit == pytest.approx(200.0)


def test_sides_get_the_same_requests_and_answer_alike(models: Path) -> None:
    images = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    (path,) = find_models(models, ["chain"])
    (tensor,) = ModelDirectory.open(path).read_json("model.json", StoredModel).inputs
    chosen = ("no wait, 2 x 1", "elastic, 1 1 2 4 8 16")
    plan = live.Plan((0.5,), target=50.0, rounds=1, seconds=0.2, sides=chosen)
    report = live.run(
        Subject(models, "chain", {tensor.name: images}), setting=Setting(paced=0.02), cores=(0, 1), plan=plan
    )
    assert len({len(some[0].seconds) for some in report.played[0.5].values()}) == 1
    assert [row["side"] for row in report.saturated_rows()] == list(chosen)
    assert {str(row["answers unlike the first"]).split()[0] for row in report.saturated_rows()} == {"0"}


def test_cores_are_numbers(models: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npz"
    np.savez(rows, image=np.zeros((1, 3, 8, 8), np.float32))
    told = CliRunner().invoke(
        app, ["elastic-live", str(models), "--model", "chain", "--data", str(rows), "--engine-cores", "a"]
    )
    assert told.exit_code == 2
    assert "give whole numbers with commas between" in told.output
