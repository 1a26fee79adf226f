"""What is loaded, what goes and who may begin: small models, one second a stage, one second a byte to load."""

from dataclasses import replace
from typing import ClassVar

import pytest

from latebind.domain.actions import Evict, Load, Outcome, Reply, Run, WakeAt
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig
from latebind.domain.errors import ConfigError, IllegalEvent
from latebind.domain.events import Arrived, Loaded, LoadFailed, StageDone
from latebind.residency.memory import ModelState
from latebind.residency.policy import Lru, MemoryView, Victim
from latebind.scheduler import Scheduler
from tests.batching.chains import DECODER, STATIC, chain, ends
from tests.residency.limited import Accounted, asks, limited, with_pieces

A = with_pieces(chain(STATIC, STATIC, name="a"), (4, 4))
B = with_pieces(chain(STATIC, STATIC, name="b"), (4, 4))
C = with_pieces(chain(STATIC, STATIC, name="c"), (1, 1))


def test_requests_for_an_absent_model_cause_one_load() -> None:
    simulator = Accounted(limited(A, budget=8, policy="lru"))
    records = simulator.run(asks((0.0, "a"), (1.0, "a"), (2.0, "a")))
    assert [(load.model, load.pieces) for load in simulator.loads] == [("a", (0, 1))]
    assert ends(records) == {1: 10.0, 2: 10.0, 3: 10.0}


def test_a_model_starts_when_whoever_begins_waits_for_no_stage() -> None:
    simulator = Accounted(limited(A, B, budget=16, policy="late"))
    records = simulator.run(asks((0.0, "a"), (0.0, "b")))
    # 8 s for each to load; the last stage comes at 8 and at 16, and the first has run by then
    assert ends(records) == {1: 9.0, 2: 17.0}


def test_whole_models_start_when_all_of_them_is_there() -> None:
    records = Accounted(limited(A, budget=8, policy="lru")).run(asks((0.0, "a")))
    assert ends(records) == {1: 10.0}


def test_only_as_much_goes_as_has_to() -> None:
    simulator = Accounted(limited(A, C, budget=9, policy="late"))
    simulator.run(asks((0.0, "a"), (20.0, "c")))
    assert [(gone.model, gone.pieces) for gone in simulator.evicted] == [("a", (1,))]


def test_a_model_larger_than_its_room_streams_through_it() -> None:
    long = with_pieces(chain(*[STATIC] * 4, name="long"), (4, 4, 4, 4))
    simulator = Accounted(limited(long, budget=8, policy="late"))
    records = simulator.run(asks((0.0, "long"), stages=4))
    assert {record.outcome for record in records} == {Outcome.ANSWERED}
    assert simulator.most == 8


def test_a_model_that_can_never_run_is_refused_with_the_figures() -> None:
    with pytest.raises(ConfigError, match=r"'a' needs 8 bytes for all of it and residency.budget is 7"):
        Scheduler(limited(A, budget=7, policy="lru"))
    with pytest.raises(ConfigError, match=r"'a' needs 8 bytes for two stages in turn"):
        Scheduler(limited(A, budget=7, policy="late"))


def test_a_loaded_model_serves_who_waited_for_it_before_it_goes() -> None:
    settings = limited(A, B, budget=8, policy="lru", batching="graph", max_batch=1, patience=1.0)
    simulator = Accounted(settings)
    records = simulator.run(asks((0.0, "a"), (0.0, "a"), (0.0, "b"), (0.0, "a")))
    assert max(ends(records)[i] for i in (1, 2, 4)) < ends(records)[3]
    assert [load.model for load in simulator.loads] == ["a", "b"]


def test_nobody_waits_past_the_bound_while_others_come() -> None:
    patience = 40.0
    steady = [(time, "a") for time in range(0, 200, 2)]
    simulator = Accounted(limited(A, B, budget=8, policy="late", patience=patience))
    records = simulator.run(asks(*sorted([*[(float(t), n) for t, n in steady], (11.0, "b")])))
    (waited,) = [record.latency for record in records if record.model == "b"]
    assert waited <= patience + 2.0  # of its own run
    assert {record.outcome for record in records} == {Outcome.ANSWERED}


@pytest.mark.parametrize("policy", ["late", "lru"])
def test_who_has_waited_past_the_bound_keeps_others_from_starting_so_that_their_model_can_go(policy: str) -> None:
    steady = [(float(time), "a") for time in range(200)]  # on three workers, somebody always runs
    settings = limited(A, B, budget=8, policy=policy, patience=20.0, workers=3, batching="graph", max_batch=1)
    records = Accounted(settings).run(asks(*sorted([*steady, (11.0, "b")])))
    (waited,) = [record.latency for record in records if record.model == "b"]
    assert waited <= 20.0 + 2.0 + 2.0  # of those that run, and of its own run


def test_who_comes_while_a_model_loads_is_in_the_same_batch() -> None:
    long = with_pieces(chain(*[STATIC] * 4, name="long"), (4, 4, 4, 4))
    longer = with_pieces(chain(*[STATIC] * 4, name="longer"), (5, 5, 5, 5))
    simulator = Accounted(limited(long, longer, A, budget=100, policy="late"))
    simulator.run(asks((0.0, "a"), (0.0, "long"), (0.0, "longer"), (18.0, "long"), stages=4))
    begun = [run.requests for run in simulator.ran if run.model == "long" and run.stage == 0]
    assert begun == [(1, 3)]


class Watching(Lru):
    """LRU that notes who waits where it is asked."""

    seen: ClassVar[list[tuple[int, int | None]]] = []

    def victims(self, view: MemoryView, need: int, wanted: ModelState, now: float) -> list[Victim]:
        self.seen.append((wanted.waiting, wanted.queue_position))
        return super().victims(view, need, wanted, now)


def test_requests_for_a_model_are_served_by_its_load_and_do_not_count_in_what_is_evicted_for_it() -> None:
    Watching.seen.clear()
    simulator = Accounted(limited(A, B, budget=8, policy=f"{__name__}:Watching"))
    simulator.run(asks((0.0, "a"), (20.0, "b"), (20.0, "b")))
    assert Watching.seen
    assert set(Watching.seen) == {(0, None)}


def test_a_failed_load_is_told_once_to_everybody_and_tried_again_later() -> None:
    simulator = Accounted(limited(C, budget=4, policy="late", back_off=5.0), fails=frozenset({0}))
    records = simulator.run(asks((0.0, "c"), (0.5, "c"), (3.0, "c"), (7.0, "c")))
    outcomes = {record.request: record.outcome for record in records}
    assert outcomes == {
        0: Outcome.NOT_LOADED,
        1: Outcome.NOT_LOADED,
        2: Outcome.NOT_LOADED,  # too early to try again
        3: Outcome.ANSWERED,
    }
    assert len([load for load in simulator.loads if load.pieces == (0,)]) == 2


def test_who_cannot_be_in_time_for_the_load_is_refused() -> None:
    settings = SchedulerConfig((A,), 1, PolicyConfig("late"), residency=ResidencyConfig(8))
    records = Accounted(settings).run(asks((0.0, "a"), allowed=9.0))
    assert [record.outcome for record in records] == [Outcome.REFUSED_LOADING]
    records = Accounted(settings).run(asks((0.0, "a"), allowed=11.0))
    assert [record.outcome for record in records] == [Outcome.ANSWERED]


def test_what_was_not_on_its_way_cannot_arrive() -> None:
    scheduler = Scheduler(limited(A, budget=8))
    with pytest.raises(IllegalEvent, match="not being loaded"):
        scheduler.handle(Loaded("a", (0,), 1.0), 0.0)
    with pytest.raises(IllegalEvent, match="not loaded on demand"):
        Scheduler(SchedulerConfig((A,))).handle(Loaded("a", (0,), 1.0), 0.0)
    scheduler.check()


def test_who_rests_for_want_of_a_core_goes_on_when_one_is_free() -> None:
    net = with_pieces(chain(STATIC, STATIC, name="a", max_batch=4), (4, 4))
    settings = SchedulerConfig((net,), 2, PolicyConfig("late"), (4, 1), at_once=1, residency=ResidencyConfig(100))
    scheduler = Scheduler(settings)
    scheduler.handle(Arrived("a", 90.0, (1, 2, 3, 4), (0, 1, 2, 3)), 0.0)
    scheduler.handle(Loaded("a", (0,), 4.0), 4.0)
    first = scheduler.handle(StageDone(0), 5.0)  # set aside for its next stage, which is not there
    assert not any(isinstance(action, Run) for action in first)
    scheduler.handle(Arrived("a", 90.0, (5,), (4,)), 5.0)
    scheduler.handle(StageDone(1), 6.0)
    scheduler.handle(Loaded("a", (1,), 4.0), 9.0)
    ended: list[int] = []
    for now, worker in ((10.0, 0), (11.0, 1)):
        actions = scheduler.handle(StageDone(worker), now)
        scheduler.check()
        ended += [action.request for action in actions if isinstance(action, Reply)]
    assert sorted(ended) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("resting", "runs"),
    [
        (0, "a0 of 1, a0 of 2, b0 of 2, b1 of 2, a1 of 3"),
        (40, "a0 of 1, a0 of 2, b0 of 2, b1 of 2, a1 of 3"),
        (30, "a0 of 1, a0 of 2, a1 of 3, b0 of 2, b1 of 2"),  # three of `a` keep more
        (10, "a0 of 1, a1 of 1, a0 of 2, a1 of 2, b0 of 2, b1 of 2"),
    ],
)
def test_nobody_starts_while_those_who_have_keep_more_between_stages_than_they_may(resting: int, runs: str) -> None:
    a, b = replace(A, footprint=replace(A.footprint, row=11)), replace(B, footprint=replace(B.footprint, row=1))
    simulator = Accounted(limited(a, b, budget=16, batching="lazy", resting=resting))
    warm = asks((0.0, "a"), (0.0, "b"))
    simulator.run([*warm, *asks(*[(100.0 + 0.1 * number, name) for number, name in enumerate("aaabb")])])
    ran = [f"{run.model}{run.stage} of {len(run.requests)}" for run in simulator.ran[4:]]
    assert ", ".join(ran) == runs


def test_a_model_is_loaded_when_the_last_who_kept_another_in_memory_is_too_late() -> None:
    a, b = (with_pieces(chain(STATIC, name=name), (100,), seconds=0.01) for name in "ab")
    scheduler = Scheduler(SchedulerConfig((a, b), residency=ResidencyConfig(150)))
    scheduler.handle(Arrived("b", 10.0, (1,), (0,)), 0.0)
    scheduler.handle(Loaded("b", (0,), 1.0), 1.0)
    scheduler.handle(Arrived("b", 2.9, (2,), (1,)), 1.5)  # may start until 1.9
    scheduler.handle(Arrived("a", 50.0, (3,), (0,)), 1.6)  # `b` is in its place
    actions = scheduler.handle(StageDone(0), 2.0)  # before the timer for who is too late
    assert [type(action) for action in actions if not isinstance(action, WakeAt)] == [Reply, Reply, Evict, Load]
    scheduler.check()


def test_a_load_that_had_to_wait_for_room_begins_a_model_as_any_other_does() -> None:
    a, b = (with_pieces(chain(STATIC, name=name), (100,), seconds=0.01, fixed=5.0) for name in "ab")
    scheduler = Scheduler(SchedulerConfig((a, b), residency=ResidencyConfig(150)))
    scheduler.handle(Arrived("b", 90.0, (1,), (0,)), 0.0)
    scheduler.handle(Loaded("b", (0,), 1.0), 1.0)
    assert not any(isinstance(action, Load) for action in scheduler.handle(Arrived("a", 90.0, (2,), (0,)), 1.1))
    loads = [action for action in scheduler.handle(StageDone(0), 2.0) if isinstance(action, Load)]
    assert [(load.model, load.begins) for load in loads] == [("a", True)]


def test_a_model_is_loaded_when_the_policy_drops_the_last_who_kept_another_in_memory() -> None:
    a = with_pieces(chain(STATIC, name="a"), (100,), seconds=0.01)
    b = with_pieces(chain(STATIC, DECODER, name="b", output_steps=(1, 9)), (50, 50), seconds=0.01)
    policy = PolicyConfig("late", max_batch=1)
    scheduler = Scheduler(SchedulerConfig((a, b), policy=policy, residency=ResidencyConfig(150, stages=False)))
    scheduler.handle(Arrived("b", 90.0, (1,), (0,), (1,)), 0.0)
    scheduler.handle(Loaded("b", (0, 1), 1.0), 1.0)
    scheduler.handle(StageDone(0), 2.0)
    scheduler.handle(Arrived("b", 6.5, (2,), (1,), (1,)), 2.0)  # in time with a short answer, not with a mean one
    scheduler.handle(Arrived("a", 90.0, (3,), (0,)), 2.0)
    actions = scheduler.handle(StageDone(0, exited=(1,)), 3.0)
    assert [type(action) for action in actions if not isinstance(action, WakeAt)] == [Reply, Reply, Evict, Load]
    scheduler.check()


def test_a_stage_that_cannot_be_loaded_is_tried_again_when_its_batch_comes_to_it() -> None:
    net = with_pieces(chain(STATIC, STATIC, name="a"), (4, 4))
    scheduler = Scheduler(SchedulerConfig((net,), residency=ResidencyConfig(100)))
    scheduler.handle(Arrived("a", 90.0, (1,), (0,)), 0.0)
    actions = scheduler.handle(Loaded("a", (0,), 4.0), 4.0)
    assert [action.pieces for action in actions if isinstance(action, Load)] == [(1,)]
    assert not any(isinstance(action, Load) for action in scheduler.handle(LoadFailed("a", (1,)), 4.1))
    actions = scheduler.handle(StageDone(0), 5.0)
    assert [action.pieces for action in actions if isinstance(action, Load)] == [(1,)]
    actions = scheduler.handle(LoadFailed("a", (1,)), 5.1)
    assert [action.outcome for action in actions if isinstance(action, Reply)] == [Outcome.NOT_LOADED]
    scheduler.check()


def test_what_nobody_uses_gives_its_memory_back_and_is_loaded_again() -> None:
    simulator = Accounted(limited(A, B, budget=100, policy="late", idle=100.0))
    records = simulator.run(asks((0.0, "a"), (0.0, "b"), (90.0, "b"), (300.0, "b")))
    # a is used until 10, b until 18 and then until 92: a goes at 110, b at 192
    assert [(gone.model, gone.pieces) for gone in simulator.evicted] == [("a", (1, 0)), ("b", (1, 0)), ("b", (1, 0))]
    assert [load.model for load in simulator.loads if load.begins] == ["a", "b", "b"]
    assert ends(records)[3] == 92.0
    assert ends(records)[4] > 308.0


def test_what_is_used_stays_however_long_a_stage_runs() -> None:
    simulator = Accounted(limited(A, budget=100, policy="late", idle=0.5))
    records = simulator.run(asks((0.0, "a"), (0.0, "a"), (0.0, "a")))
    assert {record.outcome for record in records} == {Outcome.ANSWERED}
    assert [load.begins for load in simulator.loads] == [True, False]


def test_without_a_time_nothing_goes_that_has_room() -> None:
    simulator = Accounted(limited(A, B, budget=100, policy="late", idle=0.0))
    simulator.run(asks((0.0, "a"), (0.0, "b"), (10_000.0, "b")))
    assert not simulator.evicted
