"""Scenes of large clusters: traffic after a trace, scaled; models by size; what the contest makes of its runs."""

import numpy as np
import pytest

from latebind.planning.runs import Figures
from research.cluster.placement import SIDES, Contest
from research.cluster.scenes import Shape, Traced
from research.mcache.traces import Service

SERVICES = (Service((6, 0, 0, 2)), Service((0, 0, 0, 0)), Service((1, 1, 1, 1)))


def test_traffic_is_scaled_to_the_rate_and_keeps_the_shape_of_the_trace() -> None:
    rates = Traced(SERVICES, 2, 50.0).rates(seed=3)
    assert rates.sum() == pytest.approx(50.0 * 4 * 60)
    assert sorted(rates.sum(axis=1) / rates.sum()) == pytest.approx([1 / 3, 2 / 3])


def test_a_service_without_calls_is_nobodys() -> None:
    assert (Traced(SERVICES, 2, 1.0).rates(seed=0).sum(axis=1) > 0).all()


def test_with_more_models_than_services_laps_begin_at_different_minutes() -> None:
    rates = Traced((Service(tuple(range(1, 61))),), 5, 1.0).rates(seed=0)
    assert len({int(row.argmax()) for row in rates}) > 1
    assert np.sort(rates, axis=1) == pytest.approx(np.tile(np.sort(rates[0]), (5, 1)))


def test_requests_come_in_order_each_in_its_minute_about_as_many_as_expected() -> None:
    requests = Traced((Service((0, 8, 0, 2)),), 1, 20.0).requests(seed=0)
    assert (np.diff(requests.times) >= 0).all()
    minutes = np.bincount((requests.times // 60).astype(int), minlength=4)
    assert minutes[[0, 2]].tolist() == [0, 0]
    assert minutes[[1, 3]] == pytest.approx([3840, 960], rel=0.1)


def test_equal_seeds_draw_equal_requests_and_others_do_not() -> None:
    traced = Traced(SERVICES, 2, 5.0)
    first, again, other = (traced.requests(seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.times, again.times)
    assert len(first) != len(other) or not np.array_equal(first.times, other.times)


def test_models_keep_their_size_and_their_time_whatever_their_stages() -> None:
    one, many = (Shape(stages=stages).models(20, seed=0) for stages in (1, 20))
    for whole, cut in zip(one, many, strict=True):
        assert cut.served.footprint.size == pytest.approx(whole.served.footprint.size, rel=1e-6)
        assert cut.served.footprint.penalty == pytest.approx(whole.served.footprint.penalty)
        assert cut.served.costs.remaining(0, 1) == pytest.approx(whole.served.costs.remaining(0, 1))
        assert cut.allowed == pytest.approx(whole.allowed)


def some(*shares: float) -> tuple[Figures, ...]:
    return tuple(Figures(1, share, 1.0, share, 0.0, 0.0, 0.0, 0.0, 0.0) for share in shares)


def test_the_gain_is_over_the_best_of_a_side_and_not_over_the_first() -> None:
    sides = {way: some(0.1, 0.1) for ways in SIDES.values() for way in ways}
    sides |= {SIDES["ours"][1]: some(0.9, 0.7), SIDES["usual"][3]: some(0.6, 0.4)}
    found = Contest(20, {1.0: sides}, {1.0: (10, 15)})
    assert found.best(1.0, "usual") == SIDES["usual"][3]
    assert found.gain(1.0).value == pytest.approx(1.6)
    assert found.gain(1.0, "ours in part").value == pytest.approx(8.0)
    saved = found.machines_saved(1.0)
    assert (saved.low, saved.value, saved.high) == (0.25, 0.375, 0.5)
