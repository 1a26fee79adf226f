"""Ebird's evaluation simulated: searches find what they say, baselines count by their best."""

import numpy as np
import pytest

from research.ebird import parts
from research.ebird.simulated import (
    ELASTIC,
    NO_WAIT,
    OPTIMAL,
    QOS,
    STATIC,
    WINDOWS,
    Burst,
    Kind,
    Search,
    Stable,
    Task,
    highest,
    run,
)
from research.hardware.gpu import TITAN_RTX
from research.sides import Side
from tests.research.conftest import quiet

NETWORK = "resnet152"


def means(side: Side, load: float, *, requests: int = 300, seed: int = 0) -> float:
    return float(run(Task(NETWORK, side, ((load, requests),), TITAN_RTX, seed)).mean())


@pytest.mark.parametrize("load", [Stable(2.0), Burst(0.1)])
@pytest.mark.parametrize("side", [NO_WAIT, ELASTIC])
def test_a_search_finds_the_load_up_to_which_the_target_is_kept(side: Side, load: Stable | Burst) -> None:
    found = highest(Search(NETWORK, side, TITAN_RTX, load))

    def tail(rate: float) -> float:
        steps, first = load.at(rate)
        return float(np.percentile(run(Task(NETWORK, side, steps, TITAN_RTX))[first:], 99))

    assert 0.0 < tail(found) <= QOS < tail(1.1 * found)


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


def test_bursts_have_a_low_and_a_high_load_and_each_kind() -> None:
    plan = parts.Plan((NETWORK,), seeds=1, seconds=0.5, processes=1)
    means, less = parts.bursts(plan, quiet).tables.values()
    assert [row["load"] for row in means] == [row["load"] for row in less] == ["low", "high"]
    assert set(less[0]) == {"network", "load", "than 30 ms wait", *(f"than {b}" for b in parts.BASELINES)}
