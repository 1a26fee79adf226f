"""A model at a level of its operating curve is one option of a query's plan."""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

import pytest

from latebind.domain.actions import Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import ServedModel
from latebind.domain.costs import Level
from latebind.domain.eventlog import EventLog, read_log
from latebind.domain.events import Arrived, Limited, Mapped, StageDone
from latebind.domain.query import Query, level_name
from latebind.queries.scheduler import QueryScheduler, replayed
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival, Step
from tests.models import served
from tests.queries.graphs import config, node, query

FIDELITIES, SHARES, TARGET = (1.0, 0.98, 0.95), (0.0, 0.6, 0.9), 1
LARGE, SMALL, SWIFT = served("large", stages=4), served("small", stages=1), served("swift", stages=2)  # 40, 10, 20 ms


def curved(name: str = "gate", *, below: float = 1.0) -> ServedModel:
    """A model of 50 ms that may be left after the first 10, at each level by another share."""
    plain = served(name, stages=5, hit_rates={0: SHARES[TARGET]})
    levels = [Level(fidelity, {0: share}) for fidelity, share in zip(FIDELITIES, SHARES, strict=True)]
    return replace(plain, costs=replace(plain.costs, levels=tuple(levels), target=TARGET), below=below)


GATE = curved()
ALONE = query(node("gate", "gate", accuracies=[0.9]), planner="expected")
REST = node("rest", "small", "large", after=[0], accuracies=[0.5, 0.9])
CHAIN = query(node("gate", "gate", accuracies=[0.95]), REST, planner="expected")
EVERY = (GATE, LARGE, SMALL, SWIFT)


def started(of: Query, *models: ServedModel, deadline: float) -> tuple[QueryScheduler, Run]:
    """Return the run of the first step of a query that arrives alone."""
    scheduler = QueryScheduler(config(*models, queries=[of]))
    (ask,) = scheduler.handle(Arrived(of.name, deadline, (1,), (0,)), 0.0)
    assert isinstance(ask, Map)
    (run,) = [one for one in scheduler.handle(Mapped((1,), 0), 0.0) if isinstance(one, Run)]
    return scheduler, run


@pytest.mark.parametrize(("deadline", "level"), [(1.0, 0), (0.1, 0), (0.07, 2)])
def test_a_step_runs_at_the_level_that_makes_the_query_most_likely_right_in_time(deadline: float, level: int) -> None:
    """Within 70 ms only behind who leaves is time for what is right more often."""
    _, run = started(CHAIN, *EVERY, deadline=deadline)
    assert (run.model, run.levels) == ("gate", (level,))


def either(swift: float) -> Query:
    """A query whose first step the gate answers, or another model that is right so often and has no lookups."""
    return query(node("first", "gate", "swift", accuracies=[0.95, swift]), REST, planner="expected")


@pytest.mark.parametrize(("swift", "model"), [(0.9, "swift"), (0.8, "gate")])
def test_what_a_level_promises_counts_beside_another_model(swift: float, model: str) -> None:
    """Of the gate at its lowest level 0.95 * 0.95 * 0.86 are right in time with what follows: 0.776, and not 0.817."""
    _, run = started(either(swift), *EVERY, deadline=0.07)
    assert run.model == model


def test_a_model_that_the_load_would_not_start_for_lack_of_time_is_no_option() -> None:
    """At 55 ms its whole network leaves no time for what follows, and who starts is not dropped, so it does not."""
    _, run = started(either(0.3), *EVERY, deadline=0.055)
    assert run.model == "swift"
    scheduler = QueryScheduler(config(*EVERY, queries=[CHAIN]))
    (reply,) = scheduler.handle(Arrived("query", 0.055, (1,), (0,)), 0.0)
    assert isinstance(reply, Reply)
    assert reply.outcome is Outcome.REFUSED_LATE, "at once, and not after a wait"


def test_a_step_runs_at_no_surer_level_than_the_load_chooses() -> None:
    scheduler = QueryScheduler(config(GATE, queries=[ALONE]))
    scheduler.handle(Arrived("gate", 0.2, tuple(range(100, 115)), tuple(range(15))), 0.0)
    levels = list[int]()
    scheduler.handle(Arrived("query", 9.0, (1,), (15,)), 0.0)
    actions, now, running = scheduler.handle(Mapped((1,), 0), 0.0), 0.0, tuple(range(100, 101))
    for _ in range(60):
        now += 0.01
        left = tuple(running) if running[0] != 2 else ()
        actions = scheduler.handle(StageDone(0, left), now)
        runs = [one for one in actions if isinstance(one, Run)]
        if not runs:
            break
        running = runs[0].requests
        levels += [level for request, level in zip(running, runs[0].levels, strict=True) if request == 2]
    assert levels[0] == 2, "so late that nobody gets more, whatever the query would have had time for"


def test_what_a_level_is_expected_to_take_is_that_of_the_lower_one_where_the_load_has_chosen_that() -> None:
    scheduler = Scheduler(config(GATE, queries=[]))
    shares = [(1.0,), (0.6, 0.4), (0.9, 0.1)]

    def seen(now: float) -> list[tuple[float, ...]]:
        outlooks = scheduler.outlooks(["gate"], now)
        assert outlooks["gate"].chances == pytest.approx(shares[2]), "as before: who could be in time is not refused"
        return [outlooks[level_name("gate", level)].chances for level in range(3)]

    scheduler.handle(Arrived("gate", 9.0, (0,), (0,)), 0.0)
    assert seen(0.0) == [pytest.approx(share) for share in shares]
    scheduler.handle(Arrived("gate", 0.2, tuple(range(100, 115)), tuple(range(1, 16))), 0.0)
    scheduler.handle(StageDone(0), 0.01)
    assert seen(0.01) == [pytest.approx(shares[2])] * 3


def test_behind_another_step_the_load_alone_chooses() -> None:
    """How much time is left there tells how hard the row was before."""
    nodes = node("first", "large", accuracies=[0.9]), node("gate", "gate", after=[0], accuracies=[0.95])
    later = query(*nodes, replace(REST, after=(1,), needs=((1,),)), planner="expected")
    scheduler, run = started(later, *EVERY, deadline=0.04 + 0.07)
    assert run.model == "large"
    for stage in range(4):
        actions = scheduler.handle(StageDone(0), 0.01 * (stage + 1))
    assert any(isinstance(one, StepEnded) for one in actions)
    levels = [one.levels for one in scheduler.handle(Mapped((1,), 1), 0.04) if isinstance(one, Run)]
    plain = QueryScheduler(config(*EVERY, queries=[later]))
    (alone,) = [one for one in plain.handle(Arrived("gate", 0.06, (1,), (0,)), 0.0) if isinstance(one, Run)]
    assert levels == [alone.levels], "as a request to the model itself that is due as soon"
    assert alone.levels != (2,)


def test_no_more_run_below_the_target_than_may() -> None:
    _, run = started(CHAIN, curved(below=0.01), LARGE, SMALL, deadline=0.07)
    assert run.levels == (TARGET,)


def test_a_level_that_is_stopped_is_no_option() -> None:
    scheduler = QueryScheduler(config(*EVERY, queries=[CHAIN]))
    scheduler.handle(Limited("gate", 2), 0.0)
    scheduler.handle(Arrived("query", 0.07, (1,), (0,)), 0.0)
    (run,) = [one for one in scheduler.handle(Mapped((1,), 0), 0.0) if isinstance(one, Run)]
    assert run.levels == (1,)


def arrivals(count: int, every: float, allowed: Sequence[float]) -> list[Arrival]:
    steps = (Step((4,), levels=((4, 0, 0),)), Step((0, 3)))
    return [Arrival(every * number, "query", allowed[number % len(allowed)], 0, steps=steps) for number in range(count)]


def test_a_log_of_plans_with_levels_replays_to_the_identical_actions() -> None:
    file = BytesIO()
    asked = replace(config(*EVERY, queries=[CHAIN]), slots=1_000)
    simulator = Simulator(asked, log=EventLog(file, asked))
    records = simulator.run(arrivals(150, 0.1, (0.07, 0.1, 0.5)))
    assert len(records) == 150
    file.seek(0)
    settings, entries = read_log(file)
    every = list(entries)
    runs = [one for entry in every for one in entry.actions if isinstance(one, Run) and one.model == "gate"]
    assert {0, 2} <= {level for run in runs for level in run.levels}
    assert any(isinstance(one, Reply) for entry in every for one in entry.actions)
    assert replayed(settings, every)[2] == ""
