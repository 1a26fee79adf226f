"""One request with the cores of all workers, while nobody else wants them."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from latebind.domain.actions import Action, Reply, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import poisson
from tests.batching.chains import DECODER, STATIC, chain

TWO_STAGES = chain(STATIC, STATIC, wide=0.6)
LINEAR = Curve((1, 64), (1.0, 64.0))


def scheduler_of(model: ServedModel, *, workers: int = 2, policy: str = "late") -> Scheduler:
    return Scheduler(SchedulerConfig((model,), workers, PolicyConfig(policy)))


def arrived(*requests: int) -> Arrived:
    return Arrived("net", 1e3, requests, requests)


def ran(scheduler: Scheduler, event: Arrived | StageDone, now: float) -> list[tuple[int, int, bool]]:
    """Return worker, stage and whether all cores are for it, of the runs that come of an event."""
    actions = scheduler.handle(event, now)
    scheduler.check()
    return [(one.worker, one.stage, one.wide) for one in actions if isinstance(one, Run)]


def test_a_lone_request_has_the_cores_of_all_workers_at_every_stage() -> None:
    scheduler = scheduler_of(TWO_STAGES)
    assert ran(scheduler, arrived(1), 0.0) == [(0, 0, True)]
    assert ran(scheduler, StageDone(0), 0.6) == [(0, 1, True)]


def test_where_workers_are_busy_who_comes_meanwhile_begins_at_the_next_boundary_and_each_has_its_own() -> None:
    scheduler = scheduler_of(chain(STATIC, STATIC, curve=LINEAR, wide=0.6))
    ran(scheduler, arrived(1), 0.0)
    assert ran(scheduler, arrived(2), 0.3) == []
    assert ran(scheduler, StageDone(0), 0.6) == [(0, 1, False), (1, 0, False)]


def test_elsewhere_batches_have_all_cores_one_at_a_time() -> None:
    scheduler = scheduler_of(TWO_STAGES)
    ran(scheduler, arrived(1), 0.0)
    assert ran(scheduler, arrived(2), 0.3) == []
    assert ran(scheduler, StageDone(0), 0.6) == [(0, 1, True)]
    assert ran(scheduler, arrived(3), 0.9) == []
    assert ran(scheduler, StageDone(0), 1.2) == [(0, 0, True)]
    assert scheduler.stats()["queued"] == 0  # both


def together(scheduler: Scheduler, count: int = 3) -> Run:
    """Return the only run that comes of so many requests at second 100, behind some that came one by one."""
    for request in range(1001, 1011):
        begun = 9.0 * (request - 1000)
        (run,) = runs_of(scheduler.handle(arrived(request), begun))
        for stage in (1, 2):
            scheduler.handle(StageDone(run.worker), begun + 0.6 * stage)
    (run,) = runs_of(scheduler.handle(arrived(*range(count)), 100.0))
    return run


def runs_of(actions: Sequence[Action]) -> list[Run]:
    return [one for one in actions if isinstance(one, Run)]


def test_requests_that_come_together_are_not_divided_then() -> None:
    run = together(scheduler_of(TWO_STAGES))
    assert (len(run.requests), run.wide) == (3, True)


def test_a_worker_waits_until_the_other_has_nothing_started_before_it_takes_all_cores() -> None:
    slow, quick = chain(STATIC, name="other"), chain(STATIC, wide=0.5)
    scheduler = Scheduler(SchedulerConfig((slow, quick), 2, PolicyConfig("late")))
    assert ran(scheduler, Arrived("other", 1e3, (1,), (1,)), 0.0) == [(0, 0, False)]
    assert ran(scheduler, arrived(2), 0.1) == []
    assert ran(scheduler, StageDone(0), 1.0) == [(0, 0, True)]


@pytest.mark.parametrize(
    ("granularities", "count", "worker"), [((1, 4), 3, 1), ((4, 4), 3, 0), ((1, 4), 1, 0), ((2, 8), 2, 0)]
)
def test_of_workers_of_several_sizes_the_smallest_that_fits_takes_all_cores(
    granularities: tuple[int, ...], count: int, worker: int
) -> None:
    run = together(Scheduler(SchedulerConfig((TWO_STAGES,), 2, PolicyConfig("late"), granularities)), count)
    assert (run.worker, len(run.requests), run.wide) == (worker, count, True)


def test_runs_of_batches_on_all_cores_teach_what_launches_cost_by_the_share_of_their_size() -> None:
    model = chain(STATIC, STATIC, wide=0.6)
    shares = (Curve((1, 3), (0.6, 0.5)),) * 2
    ends = []
    for seconds in (0.5, 1.0):  # as the profile says, and twice as long
        scheduler = scheduler_of(replace(model, costs=replace(model.costs, wide=shares)))
        assert together(scheduler).wide
        for stage in (1, 2):
            scheduler.handle(StageDone(0), 100.0 + stage * seconds)
        ends.append(scheduler.outlooks(("net",))["net"].ends[-1])
    assert ends[0] == pytest.approx(2.0)
    assert ends[1] > 2.1


def test_refused_requests_count_too_for_how_busy_the_workers_would_be() -> None:
    scheduler = scheduler_of(chain(STATIC, curve=LINEAR, wide=0.6))
    for request in range(2, 30):
        refused = scheduler.handle(Arrived("net", 0.05 * request + 0.01, (request,), (request,)), 0.05 * request)
        assert [type(one) for one in refused] == [Reply]
    assert not any(wide for _, _, wide in ran(scheduler, arrived(30, 31), 1.7))


def test_who_is_left_alone_has_all_cores_from_the_next_boundary_on() -> None:
    scheduler = scheduler_of(chain(STATIC, STATIC, STATIC, STATIC, curve=LINEAR, wide=0.6))
    ran(scheduler, arrived(1), 0.0)
    ran(scheduler, arrived(2), 0.5)
    ran(scheduler, StageDone(0), 0.6)
    for now in (1.6, 2.6):
        assert [wide for _, _, wide in ran(scheduler, StageDone(0), now)] == [False]
        assert [wide for _, _, wide in ran(scheduler, StageDone(1), now + 0.1)] == [False]
    assert ran(scheduler, StageDone(0), 3.6) == []  # the first is through
    assert ran(scheduler, StageDone(1), 3.7) == [(1, 3, True)]


def test_two_that_come_together_have_cores_of_their_own() -> None:
    scheduler = scheduler_of(chain(STATIC, STATIC, curve=LINEAR, wide=0.6))
    assert ran(scheduler, arrived(1, 2), 0.0) == [(0, 0, False), (1, 0, False)]


@pytest.mark.parametrize(
    ("model", "workers", "policy"),
    [
        (chain(STATIC, STATIC), 2, "late"),  # nobody knows what it would take
        (chain(STATIC, STATIC, wide=1.0), 2, "late"),  # no quicker
        (TWO_STAGES, 1, "late"),
        (TWO_STAGES, 2, "graph"),
        (TWO_STAGES, 2, "elastic"),
    ],
)
def test_otherwise_a_lone_request_has_the_cores_of_its_worker(model: ServedModel, workers: int, policy: str) -> None:
    assert [wide for _, _, wide in ran(scheduler_of(model, workers=workers, policy=policy), arrived(1), 0.0)] == [False]


@pytest.mark.parametrize(("gap", "wide"), [(2.0, True), (0.25, False)])
def test_where_so_many_come_that_they_would_wait_for_more_than_is_gained_it_has_its_own(gap: float, wide: bool) -> None:
    models = chain(STATIC, wide=0.6), chain(STATIC, name="other")
    scheduler = Scheduler(SchedulerConfig(models, 2, PolicyConfig("late")))
    for request in range(8):
        ran(scheduler, Arrived("other", 1e3, (request,), (request,)), gap * request)
        ran(scheduler, StageDone(0), gap * request + 0.1)
    assert ran(scheduler, arrived(100), 8 * gap) == [(0, 0, wide)]


class Wide(Simulator):
    """A simulation that notes which runs had all cores."""

    def __init__(self, settings: SchedulerConfig) -> None:
        super().__init__(settings)
        self.wide: list[bool] = []

    def _run(self, action: Run, now: float) -> None:
        self.wide.append(action.wide)
        super()._run(action, now)


def test_a_request_alone_has_all_cores_where_those_who_come_meanwhile_would_wait_for_it_anyway() -> None:
    """By itself it would not pay: it saves 0.3 seconds, and those who come within 0.7 would lose 0.37 together."""
    model = chain(STATIC, STATIC, wide=0.7)
    simulator = Wide(SchedulerConfig((model,), 2, PolicyConfig("late", shed=False)))
    simulator.run(poisson(model, rate=1.5, requests=500, allowed=1e9, random=Random(1)))
    assert all(simulator.wide)


def test_what_such_runs_take_teaches_what_launches_cost() -> None:
    scheduler = scheduler_of(TWO_STAGES)
    ran(scheduler, arrived(1), 0.0)
    ran(scheduler, StageDone(0), 0.6)
    assert scheduler.outlooks(("net",))["net"].ends[-1] == pytest.approx(2.0)  # as the profile says
    ran(scheduler, StageDone(0), 1.8)  # twice as long
    assert scheduler.outlooks(("net",))["net"].ends[-1] > 2.1


@pytest.mark.parametrize("others", [False, True])
def test_all_cores_are_tried_once_it_is_known_what_a_lone_request_takes_whoever_begins_beside_it(others: bool) -> None:
    scheduler = scheduler_of(chain(STATIC, wide=1.0))
    wide = []
    for request in range(0, 80, 2):
        begun = 10.0 * request
        wide.append(ran(scheduler, arrived(request), begun)[0][2])
        second = ran(scheduler, arrived(request + 1), begun + 0.1) if others else []
        second += ran(scheduler, StageDone(0), begun + 1.5)  # half as long again as the profile says
        for worker, _, _ in second:
            ran(scheduler, StageDone(worker), begun + 1.6)
    assert any(wide)


def mean_seconds(model: ServedModel, load: float) -> float:
    """Return what requests take in a simulation, at a multiple of what two workers do one by one."""
    calls = list(poisson(model, rate=2.0 * load / model.spec.stages, requests=500, allowed=1e6, random=Random(1)))
    records = Simulator(SchedulerConfig((model,), 2, PolicyConfig("late"))).run(calls)
    return sum([record.latency for record in records]) / len(records)


@pytest.mark.parametrize("count", [1, 4])
def test_simulated_means_fall_at_low_load_and_are_no_worse_at_any(count: int) -> None:
    stages = [STATIC] * count
    wide, narrow = chain(*stages, curve=LINEAR, wide=0.6), chain(*stages, curve=LINEAR)
    ratios = [mean_seconds(wide, load) / mean_seconds(narrow, load) for load in (0.05, 0.5, 0.9)]
    assert ratios[0] < 0.67
    assert max(ratios) < 1.02


def test_simulated_means_fall_at_half_load_where_batches_gain_and_all_cores_halve_their_time() -> None:
    flat = Curve((1, 16), (1.0, 8.5))
    wide, narrow = (chain(STATIC, curve=flat, max_batch=16, wide=share) for share in (0.5, None))
    assert mean_seconds(wide, 0.9) < 0.65 * mean_seconds(narrow, 0.9)  # 0.48 of what batches of 16 carry


def test_a_lone_writer_takes_the_share_that_was_measured() -> None:
    model = chain(STATIC, DECODER, output_steps=(4,), wide=0.5)
    simulator = Simulator(SchedulerConfig((model,), 2, PolicyConfig("late")))
    (call,) = poisson(model, rate=1.0, requests=1, allowed=1e6, random=Random(0))
    (record,) = simulator.run([call])
    assert record.latency == pytest.approx(0.5 * (1 + call.outputs))
