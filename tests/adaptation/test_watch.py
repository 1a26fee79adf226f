"""The watch over fidelity: alarms when it fell, hardly ever when it did not."""

from random import Random

import pytest

from latebind.adaptation.watch import FidelityWatch

TARGET = 0.97


def until_alarm(watch: FidelityWatch, fidelity: float, most: int, random: Random) -> int | None:
    return next((i for i in range(1, most + 1) if watch.add(random.random() < fidelity)), None)


@pytest.mark.parametrize("fidelity", [0.90, 0.85, 0.5, 0.0])
def test_a_fall_is_noticed_within_500_samples_in_20_of_20_trials(fidelity: float) -> None:
    for seed in range(20):
        random, watch = Random(seed), FidelityWatch(TARGET)
        assert until_alarm(watch, 0.985, 1_000, random) is None
        assert until_alarm(watch, fidelity, 500, random) is not None


def test_at_the_target_alarms_are_rare() -> None:
    found = [until_alarm(FidelityWatch(TARGET), TARGET, 1_000, Random(seed)) for seed in range(40)]
    assert sum(alarm is not None for alarm in found) <= 20  # 4,000 samples apart: in a quarter of the runs
    better = [until_alarm(FidelityWatch(TARGET), 0.985, 5_000, Random(seed)) for seed in range(40)]
    assert sum(alarm is not None for alarm in better) <= 2


def test_after_an_alarm_it_begins_anew() -> None:
    watch = FidelityWatch(TARGET)
    first = until_alarm(watch, 0.0, 100, Random(0))
    assert first == until_alarm(watch, 0.0, 100, Random(0))
    assert watch.alarms == 2


def test_a_target_of_nearly_one_is_no_division_by_zero() -> None:
    watch = FidelityWatch(1.0)
    assert not watch.add(True)
    assert any(watch.add(False) for _ in range(5))


def test_where_errors_that_follow_each_other_are_left_out_a_smaller_share_is_allowed() -> None:
    """Behind each error that counts, errors among the next ten comparisons do not."""

    def until(fidelity: float, most: int, seed: int) -> int | None:
        random, watch, until = Random(seed), FidelityWatch(TARGET), 0
        watch.thin(10.0)
        for number in range(most):
            same = random.random() < fidelity
            if same or number >= until:
                until = until if same else number + 11
                if watch.add(same):
                    return number
        return None

    assert all(until(0.94, 3_000, seed) is not None for seed in range(20))
    assert sum(until(TARGET, 1_000, seed) is not None for seed in range(40)) <= 20
