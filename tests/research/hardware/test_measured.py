"""Hardware that takes what was seen: like the record, by size, each launch of a piece once, alike for a seed."""

from functools import partial
from itertools import pairwise
from random import Random
from statistics import mean, median, pstdev

import pytest

from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.hardware import Agenda, Work
from latebind.simulation.workloads import Arrival, poisson
from research.hardware.measured import (
    Hop,
    Launch,
    Launches,
    Loading,
    Measured,
    Messages,
    Moments,
    Pace,
    Rests,
    Seen,
    at_pace,
    joined,
    typical,
)
from tests.models import served

NET = served(stages=2, seconds=0.001)


def launches(seconds: list[float], *, stage: int = 0, rows: int = 1, every: float = 0.1) -> list[tuple[float, Launch]]:
    return [(every * number, Launch("net", stage, rows, one, 0.5 * rows)) for number, one in enumerate(seconds)]


def work(rows: int = 1, stage: int = 0) -> Work:
    return Work(0, "net", stage, rows, 0.5 * rows)


def drawn(seen: Seen, *, count: int, rows: int = 1, seed: int = 0, every: float = 0.1) -> list[float]:
    moments, found = Moments(seen.length, Random(seed)), Launches(seen.launches)
    return [found.seconds(work(rows), False, moments, every * number) for number in range(count)]


def test_a_run_takes_longer_with_longer_inputs_than_the_launch_that_was_seen() -> None:
    seen, moments = [(0.0, Launch("net", 0, 1, 0.004, 0.1, longer=0.5))], Moments(1.0, Random(0))
    found = Launches(seen).seconds(Work(0, "net", 0, 1, 0.15, longer=1.5), False, moments, 0.0)
    assert found == pytest.approx(0.012)


def measured(seen: Seen, *, runs: float = 1.0, loads: float = 1.0) -> tuple[Agenda, Measured]:
    agenda = Agenda()
    return agenda, Measured(agenda, seen=seen, random=Random(0), pace=lambda now: Pace(runs, loads))


def test_runs_are_distributed_as_the_launches_that_were_seen() -> None:
    random = Random(1)
    seconds = [random.gammavariate(4.0, 0.001) for _ in range(500)]
    found = drawn(Seen(50.0, tuple(launches(seconds))), count=20_000)
    assert mean(found) == pytest.approx(mean(seconds), rel=0.03)
    assert pstdev(found) == pytest.approx(pstdev(seconds), rel=0.06)
    assert sorted(found)[19_800] == pytest.approx(sorted(seconds)[495], rel=0.1)


def test_slow_moments_last_as_long_as_they_did() -> None:
    seconds = ([0.001] * 100 + [0.003] * 100) * 5
    found = drawn(Seen(10.0, tuple(launches(seconds, every=0.01))), count=5_000, every=0.01)
    changes = sum(one != other for one, other in pairwise(found))
    assert changes < 500  # a launch drawn by itself would differ from the one before every other time


def test_a_pause_is_as_long_and_as_frequent_as_it_was() -> None:
    idle = tuple(
        (0.01 * number, Hop(max(0.001, 0.2 - 0.01 * (number - 50)) if number >= 50 else 0.001)) for number in range(100)
    )
    _, hardware = measured(Seen(1.0, idle=idle))
    delays = list[float]()
    for number in range(10_000):
        now = 0.001 * number
        hardware.bring("net", 1, now, lambda now: None)
        delays.append(hardware._heard - now)
    assert max(delays) == pytest.approx(0.2, abs=0.01)
    assert mean(delay > 0.005 for delay in delays) == pytest.approx(0.2, abs=0.02)


def test_nobody_is_kept_by_a_pause_that_is_over() -> None:
    idle = ((0.1, Hop(0.001)), (0.2, Hop(0.5)), (0.9, Hop(0.001)))
    found = Messages(idle)
    assert [found.at(moment).seconds for moment in (0.1, 0.2, 0.4, 0.54, 0.8)] == pytest.approx(
        [0.001, 0.5, 0.5, 0.361, 0.001], abs=0.002
    )


def test_a_run_of_rows_that_were_not_seen_takes_what_the_nearest_took_by_the_curve() -> None:
    seen = (*launches([0.001] * 5), *launches([0.003] * 5, rows=3))
    found = Launches(sorted(seen, key=lambda one: one[0]))
    moments = Moments(0.5, Random(0))
    assert found.seconds(work(2), False, moments, 0.0) == pytest.approx(0.002)
    assert found.seconds(work(5), False, moments, 0.0) == pytest.approx(0.005)


def test_a_pause_in_the_largest_batches_of_a_record_does_not_make_larger_ones_slow() -> None:
    usual = [launches([0.001 + 0.0001 * rows] * 20, rows=rows) for rows in range(1, 8)]
    paused = launches([0.09, 0.002], rows=9)  # the first met a pause
    seen = sorted([one for some in (*usual, paused) for one in some], key=lambda one: one[0])
    found, moments = Launches(seen), Moments(2.0, Random(0))
    taken = [found.seconds(work(28), False, moments, 0.01 * number) for number in range(500)]
    assert median(taken) == pytest.approx(0.0017 * 4)  # four times as long as seven, by the costs
    assert mean(one > 0.01 for one in taken) < 0.1


def test_a_stage_of_which_nothing_was_seen_takes_what_its_costs_say() -> None:
    found = Launches(launches([0.001]))
    assert found.seconds(work(stage=7), False, Moments(1.0, Random(0)), 0.0) == 0.5


def test_what_is_typical_never_falls_with_more_rows() -> None:
    every = ((1, 1.0), (2, 3.0), (2, 5.0), (4, 1.0), (8, 6.0)) * 5
    seen = [Launch("net", 0, rows, seconds, rows) for rows, seconds in every]
    assert typical(seen)["net", 0, False].curve.seconds == pytest.approx((1.0, 3.0, 3.0, 6.0))


def test_the_first_run_of_each_stage_after_a_rest_is_fresh() -> None:
    rests, fresh = Rests(), []
    for stage, begins, ends in (
        (0, 1.0, 1.1),
        (0, 1.1, 1.2),
        (1, 1.202, 1.3),
        (0, 1.31, 1.4),
        (1, 1.4, 1.5),
        (0, 1.5, 1.6),
    ):
        fresh.append(rests.begins(0, ("net", stage), begins))
        rests.ends(0, ends)
    assert fresh == [True, False, True, True, True, False]


def test_each_worker_rests_by_itself() -> None:
    rests = Rests()
    assert rests.begins(0, ("net", 0), 1.0)
    rests.ends(0, 1.1)
    assert rests.begins(1, ("net", 0), 1.1)
    assert not rests.begins(0, ("net", 0), 1.1)


def test_runs_take_what_fresh_ones_took_only_after_a_rest() -> None:
    seen = Seen(1.0, ((0.1, Launch("net", 0, 1, 0.003, 0.5, fresh=True)), (0.5, Launch("net", 0, 1, 0.002, 0.5))))
    agenda, hardware = measured(seen)
    ended = list[float]()

    def run_again(now: float) -> None:
        hardware.run(work(), now, [(0.0, ended.append)])

    hardware.run(work(), 1.0, [(0.0, ended.append), (0.0, run_again), (0.5, run_again)])
    agenda.run_until()
    assert ended == pytest.approx([1.003, 1.005, 1.506])


def test_where_no_fresh_run_was_seen_others_tell() -> None:
    found = Launches(launches([0.001]))
    assert found.seconds(work(), True, Moments(1.0, Random(0)), 0.0) == 0.001


def test_a_run_takes_so_many_times_as_long_as_the_pace_says() -> None:
    agenda, hardware = measured(Seen(1.0, tuple(launches([0.002] * 3))), runs=1.5)
    ended = list[float]()
    hardware.run(work(), 1.0, [(0.0, ended.append)])
    agenda.run_until()
    assert ended == [pytest.approx(1.003)]


def heard_during_a_run(hop: Hop) -> list[float]:
    """Return when three requests are heard of: before, during and after a run from 0.1 to 0.6 s."""
    seen = Seen(1.0, tuple(launches([0.5])), idle=((0.0, Hop(0.001)),), busy=((0.0, hop),))
    agenda, hardware = measured(seen)
    heard = list[float]()
    hardware.bring("net", 1, 0.0, heard.append)
    hardware.run(work(), 0.1, [])
    agenda.run_until(0.2)
    hardware.bring("net", 1, 0.2, heard.append)
    agenda.run_until()
    hardware.bring("net", 1, 1.0, heard.append)
    agenda.run_until()
    return heard


@pytest.mark.parametrize(("apart", "rows"), [(0.0001, [2]), (0.001, [1, 1])])
def test_requests_that_are_heard_of_at_once_begin_together(apart: float, rows: list[int]) -> None:
    """Both are on their way when the first is heard of, the other so much later."""
    hops = ((0.0, Hop(0.002)), (0.001, Hop(0.001 + apart)))
    seen = Seen(10.0, tuple(launches([0.005], rows=1)), idle=hops)
    simulator = Simulator(
        SchedulerConfig((NET,), 1, PolicyConfig("graph", 8)), hardware=partial(AtFirst, seen=seen, random=Random(0))
    )
    calls = [Arrival(at, "net", 1.0, 1) for at in (0.0, 0.001)]
    simulator.run(calls)
    counts = simulator.metrics.snapshot()["models"]["net"]
    assert counts["row_stages"] / counts["stage_runs"] == len(calls) / len(rows)


@pytest.mark.parametrize(("second", "more"), [("net", [True, False]), ("other", [False, False])])
def test_a_model_is_not_told_that_another_has_more_to_come(second: str, more: list[bool]) -> None:
    agenda, hardware = measured(Seen(1.0, tuple(launches([0.5])), idle=((0.0, Hop(0.001)),)))
    told = list[bool]()
    for model in ("net", second):
        hardware.bring(model, 1, 0.0, lambda now: told.append(hardware.more(now)))
    agenda.run_until()
    assert told == more


class AtFirst(Measured):
    """The record is played from its beginning."""

    def __init__(self, agenda: Agenda, *, seen: Seen, random: Random) -> None:
        super().__init__(agenda, seen=seen, random=random)
        self._moments = Moments(seen.length, AtZero())


class AtZero(Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def test_a_request_takes_longer_to_be_heard_of_while_a_worker_runs() -> None:
    assert heard_during_a_run(Hop(0.004, 0.0)) == pytest.approx([0.001, 0.204, 1.001])


def test_a_request_is_heard_of_soon_after_the_run_that_kept_it_waiting() -> None:
    assert heard_during_a_run(Hop(7.0, 0.002)) == pytest.approx([0.001, 0.602, 1.001])


def test_the_answers_of_a_batch_come_one_after_another() -> None:
    agenda, hardware = measured(Seen(1.0, back=((0.0, Hop(0.002)),), each=0.0001))
    came = list[float]()
    for at in (1.0, 1.0, 1.0, 1.5):
        hardware.send("net", at, came.append)
    agenda.run_until()
    assert came == pytest.approx([1.002, 1.0021, 1.0022, 1.502])


def test_a_load_takes_for_each_byte_what_one_of_about_that_size_took() -> None:
    _, hardware = measured(Seen(1.0, loads=((0.0, Loading(1000, 0.01)), (0.1, Loading(64_000, 0.064)))))
    assert hardware.load(800, 9.0, 0.0) == pytest.approx(0.008)
    assert hardware.load(90_000, 9.0, 0.0) == pytest.approx(0.09)
    assert measured(Seen(1.0))[1].load(800, 9.0, 0.0) == 9.0


def test_loads_have_a_pace_of_their_own() -> None:
    _, hardware = measured(Seen(1.0, loads=((0.0, Loading(1000, 0.01)),)), runs=3.0, loads=2.0)
    assert hardware.load(500, 9.0, 0.0) == pytest.approx(0.01)


def test_records_are_joined_end_to_end_each_at_its_pace() -> None:
    first = Seen(2.0, tuple(launches([1.0])), each=0.1)
    second = Seen(3.0, tuple(launches([4.0])), each=0.3, loads=((1.0, Loading(10, 6.0)),))
    both = joined([first, at_pace(second, Pace(runs=2.0, loads=3.0))])
    assert both.length == 5.0
    assert [(at, one.seconds) for at, one in both.launches] == [(0.0, 1.0), (2.0, 2.0)]
    assert both.each == pytest.approx(0.2)
    assert both.loads == ((3.0, Loading(10, 2.0)),)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    random = Random(2)
    seconds = [[random.gammavariate(4.0, 0.001) for _ in range(200)] for _ in range(2)]
    seen = Seen(20.0, (*launches(seconds[0]), *launches(seconds[1], stage=1)), idle=((0.0, Hop(0.001)),))

    def run(seed: int) -> list[Record]:
        hardware = partial(Measured, seen=seen, random=Random(seed))
        simulator = Simulator(SchedulerConfig((NET,), 1, PolicyConfig("late")), hardware=hardware)
        return simulator.run(poisson(NET, rate=100.0, requests=300, allowed=1.0, random=Random(5)))

    assert run(1) == run(1)
    assert run(1) != run(2)
