"""Queries over the scheduler, event by event and in virtual time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from latebind.domain.actions import Action, Branch, Load, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import ResidencyConfig, ServedModel
from latebind.domain.costs import Footprint
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import (
    Arrived,
    Branched,
    Cancelled,
    Event,
    Loaded,
    MapFailed,
    Mapped,
    StageDone,
    StageFailed,
)
from latebind.domain.query import NOT_RUN, Query
from latebind.queries.scheduler import QueryScheduler, make_scheduler
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Simulator
from tests.models import served
from tests.queries.graphs import SLOTS, asked, config, node, query

GATE, SMALL, LARGE = served("gate", stages=2), served("small", stages=1), served("large", stages=3)
CHAIN = query(node("gate", "gate"), node("rest", "small", "large", after=[0]))
BRANCHES = query(
    node("gate", "gate"),
    node("left", "small", after=[0], guarded=True),
    node("right", "large", after=[0], guarded=True),
)
FORK = query(
    node("gate", "gate"), node("a", "small", after=[0]), node("b", "large", after=[0]), node("c", "gate", after=[1, 2])
)


class Played:
    """A scheduler that is told events a millisecond apart."""

    def __init__(self, of: Query, *models: ServedModel, workers: int = 1) -> None:
        self.scheduler = QueryScheduler(config(*(models or (GATE, SMALL, LARGE)), queries=[of], workers=workers))
        self.now = 0.0

    def tell(self, event: Event, *, later: float = 1e-3) -> list[Action]:
        self.now += later
        actions = self.scheduler.handle(event, self.now)
        self.scheduler.check()
        return [action for action in actions if isinstance(action, Run | Reply | Branch | Map | StepEnded)]


def begun(of: Query, *events: Event, workers: int = 1, deadline: float = 9.0) -> Played:
    """A query that has arrived, behind these events."""
    played = Played(of, workers=workers)
    for event in (Arrived("query", deadline, (10,), (3,)), *events):
        played.tell(event)
    return played


def ends(actions: Sequence[Action]) -> list[tuple[Outcome, int]]:
    """Outcome and node of each step that ended, then outcome and last step of each query."""
    steps = [(one.outcome, one.node) for one in actions if isinstance(one, StepEnded)]
    return steps + [(one.outcome, one.stage) for one in actions if isinstance(one, Reply)]


def kinds(actions: Sequence[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_without_queries_there_is_no_layer_for_them() -> None:
    assert isinstance(make_scheduler(config(GATE, queries=[])), Scheduler)
    assert isinstance(make_scheduler(config(GATE, SMALL, LARGE, queries=[CHAIN])), QueryScheduler)


def test_a_chain_goes_from_inputs_to_outputs_step_by_step() -> None:
    played = Played(CHAIN)
    assert played.tell(Arrived("query", 9.0, (10,), (3,))) == [Map("query", (10,), (3,), 0, (0, NOT_RUN))]
    assert played.tell(Mapped((10,), 0)) == [Run(0, "gate", 0, (11,), (SLOTS + 3,))]
    assert kinds(played.tell(StageDone(0))) == [Run]
    told, mapped = played.tell(StageDone(0))
    assert isinstance(told, StepEnded)
    assert (told.node, told.model, told.outcome, told.stage) == (0, "gate", Outcome.ANSWERED, 1)
    assert mapped == Map("query", (10,), (3,), 1, (0, 1))
    assert played.tell(Mapped((10,), 1)) == [Run(0, "large", 0, (12,), (SLOTS + 3,))]
    played.tell(StageDone(0))
    played.tell(StageDone(0))
    assert played.tell(StageDone(0))[-1] == Map("query", (10,), (3,), 2, (0, 1))
    (reply,) = played.tell(Mapped((10,), 2))
    assert isinstance(reply, Reply)
    assert (reply.request, reply.model, reply.outcome, reply.stage) == (10, "query", Outcome.ANSWERED, 1)
    assert reply.waited + reply.ran == pytest.approx(0.008)


def test_steps_have_the_priority_of_their_query() -> None:
    played = Played(query(node("gate", "small")), served("small", stages=1, max_batch=1))
    played.tell(Arrived("query", 9.0, (10,), (3,)))
    played.tell(Mapped((10,), 0))
    for number, priority in ((20, 0), (30, 1)):
        played.tell(Arrived("query", 9.0, (number,), (number // 10 - 2,), priority=priority))
        played.tell(Mapped((number,), 0))
    assert Run(0, "small", 0, (31,), (SLOTS + 1,)) in played.tell(StageDone(0))


def test_only_the_branch_whose_condition_holds_runs() -> None:
    played = begun(BRANCHES, Mapped((10,), 0), StageDone(0))
    assert played.tell(StageDone(0))[-1] == Branch("query", (10,), (3,), (1, 2), (0, NOT_RUN, NOT_RUN))
    assert played.tell(Branched((10,), (1, 2), ((False, True),))) == [Map("query", (10,), (3,), 2, (0, NOT_RUN, 0))]


def test_a_step_that_fails_fails_the_query_once_and_names_the_node() -> None:
    played = begun(FORK, Mapped((10,), 0), StageDone(0), StageDone(0), Mapped((10,), 1), Mapped((10,), 2), workers=2)
    assert kinds(played.tell(StageFailed(1))) == [StepEnded]  # node 1 still runs, and its slot is in use
    assert ends(played.tell(StageDone(0)))[-1] == (Outcome.FAILED, 2)


def test_a_cancelled_query_ends_when_what_runs_of_it_has_ended() -> None:
    played = begun(CHAIN, Mapped((10,), 0))
    assert not played.tell(Cancelled(10))
    assert ends(played.tell(StageDone(0))) == [(Outcome.CANCELLED, 0)] * 2
    assert not played.tell(Cancelled(10))  # its reply was under way


def test_who_cannot_be_in_time_with_the_quickest_models_is_refused_at_once() -> None:
    played = Played(CHAIN)  # 20 ms and 10 ms at least
    refused = played.tell(Arrived("query", 0.030, (10, 13), (3, 4)))
    assert refused == [Reply(i, "query", Outcome.REFUSED_LATE, NOT_RUN, 0.0, 0.0) for i in (10, 13)]
    assert kinds(played.tell(Arrived("query", played.now + 0.032, (10,), (3,)))) == [Map]


def test_a_step_is_due_when_what_must_follow_can_still_be_in_time() -> None:
    played = begun(CHAIN, deadline=0.035)
    assert kinds(played.tell(Mapped((10,), 0), later=0.003)) == [Run]
    played = begun(CHAIN, deadline=0.035)
    assert (
        ends(played.tell(Mapped((10,), 0), later=0.006)) == [(Outcome.REFUSED_LATE, 0)] * 2
    )  # 26 ms are left of the 30 that it takes


def test_events_that_nobody_asked_for_change_nothing() -> None:
    played = begun(CHAIN)
    unasked: list[Event] = [Mapped((10,), 1), Mapped((11,), 0), Mapped((10,), 7), Branched((10,), (1,), ((True,),))]
    for event in (*unasked, MapFailed((10,), (1,)), MapFailed((10,), ()), Arrived("query", 9.0, (10,), (4,))):
        with pytest.raises(IllegalEvent):
            played.tell(event)
    assert kinds(played.tell(Mapped((10,), 0))) == [Run]


def test_without_replanning_models_are_picked_when_the_query_comes() -> None:
    static = query(*CHAIN.nodes, planner="quickest", replan=False)
    played = Played(static, GATE, served("small", stages=4), LARGE)  # large is the quicker one here
    played.tell(Arrived("query", 9.0, (10,), (3,)))
    for event in (Mapped((10,), 0), StageDone(0)):
        played.tell(event)
    assert played.tell(StageDone(0))[-1] == Map("query", (10,), (3,), 1, (0, 1))


def test_queries_and_requests_of_their_models_share_a_batch() -> None:
    played = Played(CHAIN)
    played.tell(Arrived("small", 9.0, (1,), (0,)))
    played.tell(Arrived("query", 9.0, (10,), (3,)))
    played.tell(Arrived("gate", 9.0, (14,), (0,)))
    played.tell(Mapped((10,), 0))
    (_, run) = played.tell(StageDone(0))
    assert isinstance(run, Run)
    assert sorted(run.requests) == [11, 14]


def test_steps_that_are_told_of_together_are_one_batch() -> None:
    for together in (True, False):
        played = Played(CHAIN)
        assert kinds(played.tell(Arrived("query", 9.0, (10, 13), (3, 4)))) == [Map]
        first, second = played.tell(Mapped((10,), 0, more=together)), played.tell(Mapped((13,), 0))
        if together:
            assert first == []
            assert second == [Run(0, "gate", 0, (11, 14), (SLOTS + 3, SLOTS + 4))]
        else:
            assert first == [Run(0, "gate", 0, (11,), (SLOTS + 3,))]


def test_simulated_queries_take_what_their_models_take_and_leave_early() -> None:
    gate = served("gate", stages=4, hit_rates={0: 0.5})
    of, models = query(*CHAIN.nodes, planner="quickest"), (gate, SMALL, LARGE)
    simulator = Simulator(config(*models, queries=[of]), mapping=0.001)
    records = simulator.run([asked(of, models, time=1.0), asked(of, models, time=2.0, leaves={"gate": 0})])
    assert [record.latency for record in records] == pytest.approx([0.053, 0.023])
    assert [step.spent for step in simulator.steps] == pytest.approx([0.041, 0.011, 0.011, 0.011])
    assert [step.stage for step in simulator.steps] == [3, 0, 0, 0]


def test_what_conditions_turned_out_to_be_changes_what_is_picked_before_them() -> None:
    of = query(
        node("first", "small", "gate", accuracies=(0.8, 0.85)),  # 10 ms or 20
        node("left", "large", after=[0], guarded=True),
        node("right", "small", after=[0], guarded=True),
        planner="expected",
    )
    simulator = Simulator(config(GATE, SMALL, LARGE, queries=[of]))
    arrivals = [
        asked(of, (GATE, SMALL, LARGE), time=float(i), allowed=0.045, holds=(True, False, True)) for i in range(60)
    ]
    simulator.run(arrivals)
    picked = [step.model for step in simulator.steps if step.node == 0]
    assert (picked[0], picked[-1]) == ("small", "gate")  # nobody goes left, for which there would be no time


def test_what_a_query_waited_is_what_its_first_step_waited() -> None:
    played = Played(CHAIN)
    played.tell(Arrived("large", 9.0, (1,), (0,)))
    played.tell(Arrived("query", 9.0, (10,), (3,)))
    played.tell(Mapped((10,), 0))  # at 3 ms; what runs goes on for two stages more
    replies: list[Reply] = []
    events: list[Event] = [*[StageDone(0)] * 5, Mapped((10,), 1), *[StageDone(0)] * 3, Mapped((10,), 2)]
    for event in events:
        replies += [action for action in played.tell(event) if isinstance(action, Reply)]
    assert [reply.request for reply in replies] == [1, 10]
    assert replies[1].waited == pytest.approx(0.003)
    assert replies[1].waited + replies[1].ran == pytest.approx(0.011)


def test_a_query_that_is_refused_for_want_of_a_model_has_it_loaded() -> None:
    cold = replace(served("gate", seconds=0.001, stages=1), footprint=Footprint((1,), (2.0,)))
    settings = replace(config(cold, queries=[query(node("gate", "gate"))]), residency=ResidencyConfig(1))
    scheduler = make_scheduler(settings)
    assert isinstance(scheduler.handle(Arrived("query", 0.3, (10,), (3,)), 0.0)[0], Map)
    load, told, reply = scheduler.handle(Mapped((10,), 0), 0.0)
    assert load == Load("gate", (0,))
    assert isinstance(told, StepEnded)
    assert isinstance(reply, Reply)
    assert (reply.outcome, reply.waited, reply.ran) == (Outcome.REFUSED_LOADING, 2.0, 0.0)
    scheduler.handle(Loaded("gate", (0,), 2.0), 2.0)
    scheduler.handle(Arrived("query", 2.3, (20,), (3,)), 2.0)
    assert Run(0, "gate", 0, (21,), (SLOTS + 3,)) in scheduler.handle(Mapped((20,), 0), 2.0)
    (late,) = scheduler.handle(Arrived("query", 2.0001, (30,), (4,)), 2.0)
    assert isinstance(late, Reply)
    assert late.outcome is Outcome.REFUSED_LATE


def test_rows_that_come_to_a_node_together_are_looked_into_together() -> None:
    played = Played(BRANCHES)
    played.tell(Arrived("query", 9.0, (10,), (3,), more=True))
    arrived = played.tell(Arrived("query", 8.0, (20, 30), (1, 2)))
    assert arrived == [Map("query", (10, 20, 30), (3, 1, 2), 0, (0, NOT_RUN, NOT_RUN))]
    played.tell(Mapped((10, 20, 30), 0))
    played.tell(StageDone(0))
    *told, branch = played.tell(StageDone(0))
    assert kinds(told) == [StepEnded] * 3
    assert isinstance(branch, Branch)
    assert (sorted(branch.requests), branch.nodes) == ([10, 20, 30], (1, 2))
    left, right = played.tell(Branched((10, 20, 30), (1, 2), ((True, False), (False, True), (True, False))))
    assert left == Map("query", (10, 30), (3, 2), 1, (0, 0, NOT_RUN))
    assert right == Map("query", (20,), (1,), 2, (0, NOT_RUN, 0))


def test_queries_whose_models_differ_are_mapped_apart() -> None:
    played = Played(query(node("one", "small", "large"), planner="equal"))
    assert played.tell(Arrived("query", 9.0, (10,), (0,), more=True)) == []
    slow, quick = Map("query", (10,), (0,), 0, (1,)), Map("query", (20,), (1,), 0, (0,))
    assert played.tell(Arrived("query", 0.02, (20,), (1,))) == [slow, quick]


def test_an_event_about_several_of_which_one_is_unknown_changes_nothing() -> None:
    played = Played(CHAIN)
    played.tell(Arrived("query", 9.0, (10, 20), (3, 4)))
    for unasked in (Mapped((10, 30), 0), Mapped((10, 10), 0), MapFailed((20, 11), (0,))):
        with pytest.raises(IllegalEvent):
            played.tell(unasked)
    (run,) = played.tell(Mapped((10, 20), 0))
    assert isinstance(run, Run)
    assert run.requests == (11, 21)
