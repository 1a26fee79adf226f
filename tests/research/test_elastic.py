"""Ebird's evaluation simulated: searches find what they say, baselines count by their best, the command prints it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from latebind.domain.errors import ConfigError
from research.__main__ import app
from research.ebird import parts, report
from research.ebird.calibrate import calibrated
from research.ebird.sides import ELASTIC, EVALUATED, NO_WAIT, OPTIMAL, PARTS, POOL_ZERO, STATIC, WINDOWS, Kind, Side
from research.ebird.simulated import QOS, Burst, Search, Stable, Steps, Task, highest, limit, run
from research.hardware.chip import TITAN_RTX, Sharing

NETWORK = "resnet152"
QUICK = parts.Plan((NETWORK,), seeds=2, seconds=1.0, processes=1)


def quiet(text: str, share: float) -> None:
    del text, share


def means(side: Side, load: float, *, requests: int = 300, seed: int = 0) -> float:
    return float(run(Task(NETWORK, side, Steps(((load, requests),)), TITAN_RTX, seed)).latencies.mean())


def test_the_same_task_gives_the_same_run() -> None:
    task = Task(NETWORK, ELASTIC, Steps(((200.0, 200),)), TITAN_RTX, 3)
    assert np.array_equal(run(task).latencies, run(task).latencies)
    assert not np.array_equal(run(task).latencies, run(replace(task, seed=4)).latencies)


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
    assert report.best(sides, Kind.OPTIMAL, min)[0] is OPTIMAL[3]
    assert report.best(sides, Kind.OPTIMAL, max)[0] is OPTIMAL[0]
    assert report.less(sides, Kind.ELASTIC, Kind.OPTIMAL).startswith("25.0% [")
    assert report.more(sides, Kind.ELASTIC, Kind.OPTIMAL).startswith("-55.0% [")
    assert report.mean_gain({"a": sides, "b": sides}, Kind.ELASTIC, Kind.OPTIMAL) == pytest.approx(-0.55)


def test_every_side_is_there_once() -> None:
    sides = (*EVALUATED, *PARTS)
    assert len({(side.label, side.pool) for side in sides}) == len(sides)


def test_a_longer_gap_between_batches_costs_those_who_have_one() -> None:
    quick, slow = (replace(TITAN_RTX, launch=launch) for launch in (0.0, 0.04))
    load = Stable(2.0)
    assert highest(Search(NETWORK, NO_WAIT, slow, load)) < 0.8 * highest(Search(NETWORK, NO_WAIT, quick, load))
    assert highest(Search(NETWORK, ELASTIC, slow, load)) == highest(Search(NETWORK, ELASTIC, quick, load))


def test_figure_6_is_flat_up_to_64_pieces() -> None:
    splits = parts.splits(TITAN_RTX)
    flat, last = [one.computed for one in splits if one.pieces <= 64], splits[-1]
    assert flat == pytest.approx([flat[0]] * 7)
    assert last.computed > 2 * flat[0]
    assert last.copied - splits[0].copied < 1e-3


def test_parts_of_the_evaluation_have_a_row_for_each_cell() -> None:
    sides = [side for side in EVALUATED if side.kind is not Kind.STATIC]
    runs = parts.bursts(QUICK, sides, {NETWORK: 350.0}, quiet)
    assert [row["load"] for row in report.burst_rows(runs)] == ["low", "high"]
    (low, high) = report.reduction_rows(runs)
    assert set(low) == set(high) == {"network", "load", "than 30 ms wait", *(f"than {b}" for b in report.BASELINES)}
    rising = report.rising_rows(parts.rising(QUICK, 340.0, quiet))
    assert "elastic" in [row["policy"] for row in rising]
    day = report.day_rows(parts.day(QUICK, {NETWORK: 300.0}, quiet))
    assert len(day) == len(report.BASELINES) + len(report.OURS)


def test_the_command_prints_tables_and_writes_a_page(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.html"
    some = ["--network", NETWORK, "--seeds", "1", "--seconds", "0.5", "--processes", "1"]
    arguments = ["elastic", "--part", "split", "--part", "throughput", *some]
    found = CliRunner().invoke(app, [*arguments, "--json", str(file), "--page", str(page)])
    assert found.exit_code == 0, found.output
    figures = json.loads(file.read_text())
    loads, gains = figures["throughput"].values()
    assert [row["network"] for row in gains] == [NETWORK, "mean"]
    assert float(loads[0]["elastic"]) > 100
    assert "Throughput with 99 % within 200 ms" in page.read_text()


def test_an_unknown_network_is_told() -> None:
    found = CliRunner().invoke(app, ["elastic", "--network", "alexnet"])
    assert found.exit_code == 2
    assert "there is no network 'alexnet'" in found.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_is_calibrated() -> None:
    with pytest.raises(ConfigError, match="leave out --calibrated"):
        calibrated()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_is_measured() -> None:
    chip = calibrated()
    assert 1e11 < chip.flops * chip.reached < 1e16
    assert 1e10 < chip.memory < 1e14
    assert 1e8 < chip.pcie < 1e12
    assert 0.0 < chip.copy < 1e-3
    assert 0.0 < chip.least < 1e-2
