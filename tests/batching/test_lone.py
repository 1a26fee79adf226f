"""What a lone request takes with all cores and with its worker's own, learned from either."""

from random import Random

import pytest

from latebind.batching.lone import COLD, SELDOM, TRIES, Lone, gains

OWN = 1.0  # seconds, by the profile


def served(lone: Lone, runs: int, *, share: float, rate: float = 0.0, own: float = OWN) -> list[bool]:
    """Return which of so many lone requests had all cores, where they really take such a share of `own` seconds."""
    had = []
    for _ in range(runs):
        wide = lone.pays(0, OWN, rate)
        lone.observe(0, OWN, share * own if wide else own, wide=wide)
        had.append(wide)
    return had


def test_what_was_measured_counts_as_long_as_runs_take_just_that() -> None:
    assert all(served(Lone([0.7]), 300, share=0.7))
    assert not any(served(Lone([1.0]), 300, share=0.7))  # nothing has shown that the profile is off


@pytest.mark.parametrize(("measured", "share", "own"), [(1.0, 0.7, 1.1), (1.0, 0.7, 4.0), (0.6, 1.3, 1.1)])
def test_a_share_that_was_measured_at_a_bad_moment_is_found_out(measured: float, share: float, own: float) -> None:
    lone = Lone([measured])
    served(lone, 400, share=share, own=own)
    assert gains(OWN, lone.share(0), 0.0) is (share < 1.0)
    had = served(lone, 2 * SELDOM, share=share, own=own)
    assert sum([wide is (share < 1.0) for wide in had]) >= 2 * SELDOM - 3 * TRIES


def test_the_other_way_is_tried_again_once_it_has_not_been_seen_for_long() -> None:
    lone = Lone([0.7])
    had = served(lone, 3_000, share=0.7, own=1.1)
    assert all(had[:COLD])
    assert 10 * TRIES <= had.count(False) <= 25 * TRIES
    served(lone, 3_000, share=1.4, own=1.1)
    assert lone.share(0) > 1.0


def test_all_cores_are_not_tried_where_so_many_come_that_even_a_great_share_would_not_pay() -> None:
    assert not any(served(Lone([1.0]), 300, share=0.7, rate=1.0, own=1.1))
    assert any(served(Lone([1.0]), 300, share=0.7, rate=0.1, own=1.1))


def test_pauses_of_the_machine_do_not_count_nor_does_the_first_run_of_a_way() -> None:
    lone = Lone([0.7])
    served(lone, 500, share=0.7, own=1.1)
    before = lone.share(0)
    for seconds in (100.0, 200.0, 100.0):
        lone.observe(0, OWN, seconds, wide=True)
    assert lone.share(0) == pytest.approx(before, rel=0.05)
    served(lone, 20, share=0.7, own=1.1)
    lone.observe(0, OWN, 100.0, wide=False)
    assert lone.share(0) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_is_now_quick_and_now_slow_does_not_change_the_share(seed: int) -> None:
    random, lone, slower = Random(seed), Lone([0.72]), 1.0
    shares = []
    for run in range(4000):
        if run % 150 == 0:
            slower = random.uniform(1.0, 2.0)
        wide = lone.pays(0, OWN, 0.1)
        seconds = slower * random.uniform(0.9, 1.2) * (3.0 if random.random() < 0.02 else 1.0)
        lone.observe(0, OWN, 0.56 * seconds if wide else seconds, wide=wide)
        shares.append(lone.share(0))
    assert all(share == pytest.approx(0.56, rel=0.12) for share in shares[1000:])


@pytest.mark.parametrize("seed", range(8))
def test_slow_moments_at_which_it_goes_over_to_the_other_way_do_not_change_the_share(seed: int) -> None:
    random, lone = Random(seed), Lone([0.72])
    for run in range(6000):
        wide = lone.pays(0, OWN, 0.5 * random.gammavariate(20.0, 0.05))
        seconds = random.gammavariate(12.0, 1.0 / 12.0) * (1.8 if run % 400 < 30 else 1.0)
        lone.observe(0, OWN, 0.8 * seconds if wide else seconds, wide=wide)
        assert run < 1000 or lone.share(0) == pytest.approx(0.8, rel=0.2)


def test_the_first_run_in_a_way_that_was_not_seen_for_long_does_not_count() -> None:
    lone = Lone([0.7])
    for wide, seconds in [(True, 0.77)] * COLD + [(False, 9.0), (False, 1.1)]:
        lone.observe(0, OWN, seconds, wide=wide)
    assert lone.share(0) == pytest.approx(0.7)


def test_runs_that_took_no_time_on_a_coarse_clock_say_nothing() -> None:
    lone = Lone([0.7])
    for wide in (True, False) * 5:
        lone.observe(0, OWN, 0.0, wide=wide)
    assert lone.share(0) == 0.7


def test_each_stage_has_a_share_of_its_own() -> None:
    lone = Lone([0.7, 0.7], [0.5, 0.5])
    for _ in range(50):
        for wide, seconds in ((True, 1.5), (False, 1.1)):
            lone.observe(1, OWN, seconds, wide=wide)
    assert [lone.pays(stage, OWN, 0.0) for stage in (0, 1)] == [True, False]


def test_a_request_gains_more_than_who_comes_meanwhile_loses_or_does_not() -> None:
    assert [gains(1.0, 0.5, rate) for rate in (0.0, 3.9, 4.1)] == [True, True, False]
    assert not gains(1.0, 1.0, 0.0)
    assert not gains(0.0, 0.5, 0.0)
