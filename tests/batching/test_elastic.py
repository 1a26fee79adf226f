"""Ebird's algorithm 1: figure 7 step by step, and what bounds it."""

from collections.abc import Sequence

from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.costs import Curve
from latebind.simulation.workloads import Arrival
from tests.batching.chains import STATIC, Timeline, chain

GRANULARITIES = (1, 1, 2, 4, 8, 16)
LINEAR = Curve((1, 64), (1.0, 64.0))  # a batch takes as long as one after another


def played(
    arrivals: Sequence[Arrival],
    *,
    granularities: tuple[int, ...] = GRANULARITIES,
    at_once: int = 0,
    max_alive: int = 0,
    name: str = "elastic",
) -> list[tuple[float, tuple[int, ...]]]:
    """Return when which requests began together, counted from 1."""
    policy = PolicyConfig(name, shed=False, max_alive=max_alive)
    crew = SchedulerConfig((chain(STATIC, curve=LINEAR),), len(granularities), policy, granularities, at_once)
    timeline = Timeline(crew)
    timeline.run(arrivals)
    return [(time, requests) for time, _, requests in timeline.ran]


def call(time: float, rows: int = 1) -> Arrival:
    return Arrival(time, "net", 1e3, 0, rows=rows)


def numbers(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def test_figure_7_twelve_inputs_go_to_the_workers_of_eight_and_four() -> None:
    assert played([call(0.0, 12)]) == [(0.0, numbers(1, 8)), (0.0, numbers(9, 12))]


def test_figure_7_a_worker_is_idle_again_when_its_batch_has_ended() -> None:
    began = played([call(0.0, 12), call(1.0, 5), call(8.0, 8)])
    assert began[2:] == [(1.0, numbers(13, 14)), (1.0, (15,)), (1.0, (16,)), (2.0, (17,)), (8.0, numbers(18, 25))]


def test_no_more_are_alive_than_allowed() -> None:
    assert played([call(0.0, 12)], max_alive=6)[:3] == [
        (0.0, numbers(1, 4)),
        (0.0, numbers(5, 6)),
        (2.0, numbers(7, 8)),
    ]


def test_no_more_workers_run_than_there_are_cores_for() -> None:
    began = played([call(0.0, 15)], at_once=2)
    assert began == [(0.0, numbers(1, 8)), (0.0, numbers(9, 12)), (4.0, numbers(13, 14)), (6.0, (15,))]


def test_without_a_worker_of_one_the_smallest_takes_what_there_is() -> None:
    assert played([call(0.0, 3)], granularities=(4, 2)) == [(0.0, numbers(1, 2)), (2.0, (3,))]


def test_other_policies_fill_workers_up_to_their_granularity() -> None:
    assert played([call(0.0, 7)], granularities=(4, 2), name="graph") == [
        (0.0, numbers(1, 4)),
        (0.0, numbers(5, 6)),
        (2.0, (7,)),
    ]
