"""How busy workers are, and when they take turns on all cores instead of running side by side."""

from math import inf
from random import Random

import pytest

from latebind.batching.load import BELIEVED, GAPS, IDLE, Busy, Load, mean_seconds, shares_batches


def loaded(gap: float, *, alone: float = 1.0, batched: float = 0.5, most: int = 5, workers: int = 2) -> Load:
    """Return the load of requests that come so many seconds apart, until second 0."""
    load = Load(workers)
    for i in range(500):
        load.add(gap * (i - 499), alone, batched, most)
    return load


def test_without_two_arrivals_nothing_is_known_of_the_load() -> None:
    load = Load(2)
    assert load.at(5.0) == IDLE
    load.add(5.0, 1.0, 0.5, 4)
    assert load.at(5.0) == load.at(9.0) == IDLE


def test_it_is_the_work_that_arrives_as_a_share_of_the_time_of_all_workers() -> None:
    busy = loaded(2.0).at(0.0)
    assert (busy.alone, busy.batched, busy.more) == pytest.approx((0.25, 0.125, 0.25 * 0.375))
    busy = loaded(2.0, workers=4).at(0.0)
    assert (busy.alone, busy.batched, busy.more) == pytest.approx((0.125, 0.0625, 0.125 * 0.375))


def test_a_request_adds_nothing_less_than_nothing_to_a_batch() -> None:
    assert loaded(2.0, batched=0.1).at(0.0).more == 0.0


def test_of_different_requests_it_is_the_mean_work() -> None:
    load = Load(1)
    for i in range(2000):
        load.add(4.0 * i, *((3.0, 3.0) if i % 2 else (1.0, 1.0)), 1)
    assert load.at(4.0 * 1999).alone == pytest.approx(0.5, rel=0.02)


def test_it_falls_while_nobody_comes() -> None:
    load = loaded(1.0)
    assert load.at(0.5) == load.at(0.0)
    assert 0.7 * load.at(0.0).alone < load.at(100.0).alone < 0.9 * load.at(0.0).alone


def test_behind_a_pause_as_many_are_expected_as_before_it_until_the_gaps_show_that_fewer_come() -> None:
    load, before = loaded(1.0), loaded(1.0).at(0.0).alone
    for i in range(20):
        load.add(10_000.0 + i, 1.0, 0.5, 5)
    assert load.at(10_020.0).alone > 0.75 * before


@pytest.mark.parametrize("times", [0.1, 0.2, 5.0, 200.0])
def test_where_more_or_fewer_come_the_load_is_that_of_the_latest_of_them(times: float) -> None:
    load, before = loaded(1.0), loaded(1.0).at(0.0).alone
    for i in range(1, GAPS + 4):
        load.add(times * i, 1.0, 0.5, 5)
    assert load.at(times * (GAPS + 3)).alone == pytest.approx(before / times, rel=0.1)


def test_a_steady_load_is_told_steadily() -> None:
    random, load, now, told = Random(0), Load(2), 0.0, []
    for _ in range(20_000):
        now += random.expovariate(1.0)
        load.add(now, 1.0, 0.5, 5)
        told.append(load.at(now).alone)
    told.sort()
    assert 0.4 < told[1_000] < told[-1_000] < 0.63


def test_requests_of_one_moment_are_followed_by_gaps_of_any_length() -> None:
    load = Load(2)
    for second in (0.0, 0.0, 8.0, 16.0):
        load.add(second, 1.0, 1.0, 1)
    assert load.at(16.0).alone == pytest.approx(0.5 / (16.0 / 3))


def test_it_may_be_more_work_than_there_is_time_for() -> None:
    busy = loaded(0.1).at(0.0)
    assert (busy.alone, busy.batched) == pytest.approx((5.0, 2.5))
    together = Load(2)
    for _ in range(9):
        together.add(0.0, 1.0, 1.0, 1)
    assert together.at(0.0) == Busy(inf, inf, inf)
    assert not shares_batches(0.5, 0.5, 2, Busy(inf, inf, inf))


@pytest.mark.parametrize("load", [0.1, 0.2, 0.5, 0.8])
def test_two_workers_take_turns_where_all_cores_halve_the_time(load: float) -> None:
    assert shares_batches(0.5, 0.5, 2, Busy(load, load, load))


@pytest.mark.parametrize("load", [0.0, 0.2, 0.5, 0.8])
def test_they_do_not_where_all_cores_save_nothing(load: float) -> None:
    assert not shares_batches(1.0, 1.0, 2, Busy(load, load, load))


def test_the_less_is_saved_the_lower_the_load_up_to_which_they_do() -> None:
    loads = [i / 100 for i in range(1, 100)]
    highest = [
        max((load for load in loads if shares_batches(share, share, 2, Busy(load, load, load))), default=0.0)
        for share in (0.5, 0.55, 0.6, 0.7)
    ]
    assert highest == sorted(highest, reverse=True)
    assert highest[0] == pytest.approx(BELIEVED, abs=0.011)
    assert 0.0 < highest[2] < highest[0]


def test_batches_that_take_no_longer_than_one_request_keep_queues_short() -> None:
    assert not shares_batches(0.7, 0.7, 2, Busy(0.8, 0.8, 0.8))
    assert shares_batches(0.7, 0.7, 2, Busy(0.8, 0.1, 0.05))


def test_turns_are_taken_while_batches_grow_to_what_their_largest_size_would_hardly_carry() -> None:
    """A perceptron whose weights are read once for each batch: 5.1 ms alone, 0.5 ms a request in batches of 16."""
    at_half, nearer = (loaded(1.0 / rate, alone=0.0051, batched=0.0005, most=16).at(0.0) for rate in (2000.0, 2700.0))
    assert shares_batches(0.7, 0.69, 2, at_half)
    assert not shares_batches(0.7, 0.69, 2, nearer)


def test_where_both_ways_are_equal_but_for_what_workers_slow_each_other_down_they_take_turns() -> None:
    assert shares_batches(0.73, 0.73, 2, Busy(0.8, 0.24, 0.16))
    assert not shares_batches(0.82, 0.82, 2, Busy(0.8, 0.24, 0.16))


def test_while_few_come_they_take_turns_because_the_caches_then_hold_one_copy_of_the_weights() -> None:
    assert shares_batches(0.78, 0.66, 2, Busy(0.1, 0.1, 0.1))
    assert not shares_batches(0.78, 0.66, 2, Busy(0.45, 0.45, 0.45))
    assert not shares_batches(0.98, 0.9, 2, Busy(0.1, 0.1, 0.1))


def test_without_batches_the_mean_is_that_of_a_queue_for_work_of_one_length() -> None:
    for busy in (0.1, 0.5, 0.9):  # one worker: Pollaczek-Khinchine
        assert mean_seconds(2.0, 2.0, 2.0, 1, busy) == pytest.approx(2.0 + busy / (1.0 - busy))


def test_a_batch_runs_as_long_as_the_next_one_gathers() -> None:
    """One worker, batches as large as you like: of 3 seconds, and 0.5 for each request; one comes each second."""
    assert mean_seconds(3.5, 0.5, 0.5, 1, 3.5) == pytest.approx(6.0 * 1.5 + 0.5**3)


@pytest.mark.parametrize("busy", [0.01, 0.5, 1.0, 4.0, 9.0, 100.0])
def test_the_mean_grows_with_the_load(busy: float) -> None:
    assert mean_seconds(1.0, 0.2, 0.1, 2, busy) <= mean_seconds(1.0, 0.2, 0.1, 2, 1.1 * busy)


def test_nobody_takes_turns_where_more_comes_than_there_is_time_for() -> None:
    assert not shares_batches(0.4, 0.4, 2, Busy(1.2, 1.2, 1.2))
