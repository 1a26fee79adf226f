"""Ebird's evaluation: searches find what they say, baselines count by their best, live sides answer alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latebind.bench.subject import Setting
from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec, TensorSpec
from research.ebird import live, parts
from research.ebird.simulated import (
    ELASTIC,
    NO_WAIT,
    OPTIMAL,
    POOL_ZERO,
    QOS,
    STATIC,
    WINDOWS,
    Burst,
    Kind,
    Search,
    Stable,
    Steps,
    Task,
    highest,
    limit,
    run,
)
from research.hardware.chip import TITAN_RTX, Sharing
from research.live import Played
from research.sides import Side
from tests.research.conftest import quiet, subject_of

NETWORK = "resnet152"


def means(side: Side, load: float, *, requests: int = 300, seed: int = 0) -> float:
    return float(run(Task(NETWORK, side, Steps(((load, requests),)), TITAN_RTX, seed)).latencies.mean())


@pytest.mark.parametrize("load", [Stable(2.0), Burst(0.1)])
@pytest.mark.parametrize("side", [NO_WAIT, ELASTIC])
def test_a_search_finds_the_load_up_to_which_the_target_is_kept(side: Side, load: Stable | Burst) -> None:
    found = highest(Search(NETWORK, side, TITAN_RTX, load))

    def tail(rate: float) -> float:
        steps, first = load.at(rate)
        return float(np.percentile(run(Task(NETWORK, side, steps, TITAN_RTX)).latencies[first:], 99))

    assert 0.0 < tail(found) <= QOS < tail(1.1 * found)


def test_nobody_carries_more_than_the_card_computes() -> None:
    """Gaps are drawn, so that a thousand requests may come a few per cent later than they are asked to."""
    most = limit(NETWORK, TITAN_RTX)
    for side in (NO_WAIT, POOL_ZERO, ELASTIC):
        assert 0.5 * most < highest(Search(NETWORK, side, TITAN_RTX, Stable(3.0))) < 1.1 * most


@pytest.mark.parametrize("sharing", Sharing)
def test_a_lone_request_takes_the_same_by_either_rule(sharing: Sharing) -> None:
    task = Task("resnet50", ELASTIC, Steps(((1.0, 20),)), replace(TITAN_RTX, sharing=sharing))
    alone = 0.0054 + 602_112 / 12e9 + 4000 / 12e9 + 2 * 3.9e-6
    assert np.median(run(task).latencies) == pytest.approx(alone, rel=0.01)


def test_section_3_no_wait_takes_less_than_a_wait_at_low_load_and_padding_is_never_better() -> None:
    ten, thirty = OPTIMAL[WINDOWS.index(0.010)], OPTIMAL[WINDOWS.index(0.030)]
    padded = STATIC[WINDOWS.index(0.030)]
    assert means(NO_WAIT, 20.0) < means(ten, 20.0) < means(thirty, 20.0)
    for load in (20.0, 150.0, 300.0):
        assert means(thirty, load) <= means(padded, load)


def test_figure_8_elastic_batches_take_about_half_of_a_wait_of_30_ms_at_low_load() -> None:
    assert 0.25 < means(ELASTIC, 30.0) / means(OPTIMAL[WINDOWS.index(0.030)], 30.0) < 0.55


def test_a_baseline_counts_by_its_best_window() -> None:
    sides = {OPTIMAL[0]: np.array([4.0, 6.0]), OPTIMAL[3]: np.array([3.0, 3.0]), ELASTIC: np.array([2.0, 2.5])}
    assert parts.best(sides, Kind.OPTIMAL, min)[0] is OPTIMAL[3]
    assert parts.best(sides, Kind.OPTIMAL, max)[0] is OPTIMAL[0]
    assert parts.less(sides, Kind.ELASTIC, Kind.OPTIMAL).startswith("25.0% [")
    assert parts.more(sides, Kind.ELASTIC, Kind.OPTIMAL).startswith("-55.0% [")
    assert parts.mean_gain({"a": sides, "b": sides}, Kind.OPTIMAL) == pytest.approx(-0.55)


def test_a_longer_gap_between_batches_costs_those_who_have_one() -> None:
    quick, slow = (replace(TITAN_RTX, launch=launch) for launch in (0.0, 0.04))
    load = Stable(2.0)
    assert highest(Search(NETWORK, NO_WAIT, slow, load)) < 0.8 * highest(Search(NETWORK, NO_WAIT, quick, load))
    assert highest(Search(NETWORK, ELASTIC, slow, load)) == highest(Search(NETWORK, ELASTIC, quick, load))


def test_figure_6_is_flat_up_to_64_pieces() -> None:
    (rows,) = parts.split(parts.Plan(), quiet).tables.values()
    computed, copied = ([float(str(row[name])) for row in rows] for name in ("computed ms", "copied ms"))
    assert computed[:7] == pytest.approx([computed[0]] * 7)
    assert computed[-1] > 2 * computed[0]
    assert copied[-1] - copied[0] < 1.0


def test_loads_of_bursts_and_days_are_known_once_and_rows_have_each_kind() -> None:
    burst = Burst(0.1)
    plan = parts.Plan((NETWORK,), seeds=1, seconds=1.0, processes=1)
    plan.known.update({(NETWORK, burst): 350.0, (NETWORK, Stable(1.0)): 300.0})
    means, less = parts.bursts(plan, quiet).tables.values()
    assert [row["load"] for row in means] == [row["load"] for row in less] == ["low", "high"]
    assert set(less[0]) == {"network", "load", "than 30 ms wait", *(f"than {b}" for b in parts.BASELINES)}
    (day,) = parts.day(plan, quiet).tables.values()
    assert len(day) == len(parts.BASELINES) + len(parts.OURS)


# Live -----------------------------------------------------------------------------------------------------------------


def test_baselines_have_all_cores_in_one_worker_or_a_worker_for_each() -> None:
    sides = live.contenders(2)
    waits = [side for side in sides.values() if side.kinds[0] in live.BASELINES]
    assert {(side.workers, side.threads) for side in waits} == {(1, 2), (2, 1)}
    assert {side.policy.window for side in waits} == {0.0, *live.WINDOWS}
    assert len(live.contenders(1)) < len(sides)


@pytest.mark.parametrize(
    ("seconds", "mean"),
    [({"5": (0.2, 0.4), "9": (0.4, 0.2)}, "0.30"), ({"5": (np.inf, np.inf), "9": (0.4, 0.4)}, "")],
)
def test_the_best_wait_is_chosen_by_the_other_rounds_and_never_one_that_answers_nobody(
    seconds: dict[str, tuple[float, float]], mean: str
) -> None:
    kinds = {"5": live.Kind.OPTIMAL_WAIT, "9": live.Kind.OPTIMAL_WAIT, "e": live.Kind.ELASTIC}
    report = live.ElasticReport(0, {name: Side(name, kinds=(kind,)) for name, kind in kinds.items()})
    report.allowed, report.spans = 1.0, {0.5: [1.0, 1.0]}
    flags = np.array([True])
    report.played = {
        0.5: {
            name: [Played(np.array([one]), flags, flags) for one in some]
            for name, some in {**seconds, "e": (0.1, 0.1)}.items()
        }
    }
    assert str(report.rows()[0]["mean ms"]).startswith(mean[2:] if mean else "")
    (row,) = report.judged_rows()
    assert str(row["mean of optimal wait over it"]).startswith("4.000")


@pytest.mark.parametrize(("curve", "most"), [((1.0, 8.0), 1.0), ((1.0, 4.0), 2.0), ((1.0, 16.0), 1.0)])
def test_a_core_does_the_most_in_the_batches_that_are_best_for_it(curve: tuple[float, float], most: float) -> None:
    vector = TensorSpec("x", "float32", (1,))
    served = ServedModel(ModelSpec("net", "1", (vector,), (vector,), 1, 8), ModelCosts((Curve((1, 8), curve),)))
    assert live.most_answered(served) == pytest.approx(most)


def test_nobody_has_more_in_time_than_fits_by_the_profile_or_by_what_any_side_has_done() -> None:
    report = live.ElasticReport(0, {"a": Side("a"), "b": Side("b")}, alone=0.01, fits=150.0)
    report.saturated = {"a": [1.0, 1.0], "b": [0.9, 0.7]}
    assert report.limit == 150.0
    report.saturated["b"] = [0.5, 0.5]
    assert report.limit == pytest.approx(200.0)


def test_sides_get_the_same_requests_and_answer_alike(models: Path) -> None:
    chosen = ("no wait, 2 x 1", "elastic, 1 1 2 4 8 16")
    plan = live.Plan((0.5,), target=50.0, rounds=1, seconds=0.2, sides=chosen)
    asked, setting = subject_of(models, "chain"), Setting(paced=0.02)
    report = live.run(asked, setting=setting, cores=(0, 1), plan=plan, progress=quiet)
    assert len({len(some[0].seconds) for some in report.played[0.5].values()}) == 1
    assert [row["side"] for row in report.saturated_rows()] == list(chosen)
    assert {str(row["answers unlike the first"]).split()[0] for row in report.saturated_rows()} == {"0"}
