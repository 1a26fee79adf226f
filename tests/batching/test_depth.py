"""Depth by the time that there is: which level of an operating curve a request gets, and that it keeps it."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from latebind.batching.costs import Estimate
from latebind.batching.depth import SAVED, Depth, Misses
from latebind.batching.requests import Backlog, Lane, Models, Order, Request
from latebind.domain.actions import Action, Outcome, Reply, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid, Level
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import Arrived, Event, Limited, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival, poisson
from tests.batching.chains import STATIC, chain
from tests.batching.test_lengths import text

LINEAR = Curve((1, 64), (1.0, 64.0))
LEVELS = (Level(1.0, {0: 0.0}), Level(0.99, {0: 0.4}), Level(0.97, {0: 0.6}), Level(0.95, {0: 0.8}))
TARGET = 1


def curved(*, below: float = 1.0, kinds: int = 4, curve: Curve = LINEAR) -> ServedModel:
    """A model of four seconds whose requests leave behind the first one or at the end; a batch saves nothing."""
    model = chain(*(STATIC,) * kinds, curve=curve, hit_rates=LEVELS[TARGET].hit_rates)
    return replace(model, costs=replace(model.costs, levels=LEVELS, target=TARGET), below=below)


class Noted(Simulator):
    """A simulation that notes the levels at which each request ran."""

    def __init__(self, *models: ServedModel, policy: str = "late") -> None:
        super().__init__(SchedulerConfig(models, 1, PolicyConfig(policy)))
        self.levels: dict[int, list[int]] = {}
        self.bare = 0  # runs without levels
        self.batches: list[int] = []  # how many started together each time

    def _run(self, action: Run, now: float) -> None:
        for request, level in zip(action.requests, action.levels, strict=bool(action.levels)):
            self.levels.setdefault(request, []).append(level)
        self.bare += not action.levels
        if action.stage == 0:
            self.batches.append(len(action.requests))
        super()._run(action, now)


def at_rate(model: ServedModel, rate: float, *, allowed: float = 60.0) -> tuple[Noted, list[Record]]:
    played = Noted(model)
    return played, played.run(poisson(model, rate=rate, requests=2000, allowed=allowed, random=Random(3)))


def mean_fidelity(played: Noted) -> float:
    return sum(LEVELS[levels[0]].fidelity for levels in played.levels.values()) / len(played.levels)


def test_who_comes_alone_and_has_time_gets_the_whole_network() -> None:
    played = Noted(curved())
    played.run([Arrival(100.0 * n, "net", 60.0, 0, levels=(3, 0, 0, 0)) for n in range(5)])
    assert {level for levels in played.levels.values() for level in levels} == {0}


def test_a_request_keeps_its_level_to_its_end_whoever_comes_meanwhile() -> None:
    alone = Arrival(0.0, "net", 60.0, 3, levels=(3, 3, 3, 3))
    crowd = [Arrival(0.5, "net", 60.0, 3, levels=(3, 3, 3, 3)) for _ in range(40)]
    played = Noted(curved())
    played.run([alone, *crowd])
    assert played.levels[0] == [0] * 4
    assert {len(set(levels)) for levels in played.levels.values()} == {1}
    assert max(levels[0] for levels in played.levels.values()) == 3


def test_the_more_come_the_lower_the_level_and_more_are_in_time_than_at_the_target_alone() -> None:
    fidelities = [mean_fidelity(at_rate(curved(), rate)[0]) for rate in (0.1, 0.25, 0.33, 0.7)]
    assert fidelities == sorted(fidelities, reverse=True)
    assert fidelities[0] > 0.995
    assert fidelities[-1] < 0.96
    fixed = chain(*(STATIC,) * 4, curve=LINEAR, hit_rates=LEVELS[TARGET].hit_rates)
    ours, theirs = (at_rate(model, 0.6)[1] for model in (curved(), fixed))
    assert answered(ours) > 1.25 * answered(theirs)


def answered(records: Sequence[Record]) -> int:
    return sum(record.outcome is Outcome.ANSWERED for record in records)


@pytest.mark.parametrize("below", [0.1, 0.5])
def test_no_more_than_the_share_allowed_runs_below_the_target(below: float) -> None:
    played, _ = at_rate(curved(below=below, curve=Curve((1, 64), (1.0, 16.0))), 2.4)
    lower = np.cumsum([levels[0] > TARGET for levels in played.levels.values()])  # in the order of their starts
    started = np.cumsum(np.ones(len(lower)))
    ends = np.array(played.batches).cumsum() - 1
    assert (lower[ends] <= below * started[ends]).all()
    assert lower[-1] > 0.5 * below * len(lower)
    assert max(played.batches) > 1


def test_the_share_allowed_is_kept_for_as_many_as_start_together() -> None:
    depth = Depth(Estimate(curved().spec, curved().costs), len(LEVELS), TARGET, 0.3)
    for lowest in (TARGET, TARGET, TARGET, len(LEVELS) - 1):  # 8 of 24 would be too many, 8 of 32 are not
        assert depth.lowest == lowest
        depth.choose([4.0, 3.0, 2.0, 1.0], 1.0, inf)
        depth.start([0] * 8)
        assert depth.level == lowest


def test_a_policy_that_counts_no_exits_runs_as_calibrated() -> None:
    played = Noted(curved(), policy="lazy+")
    played.run(poisson(curved(), rate=0.3, requests=50, allowed=60.0, random=Random(1)))
    assert not played.levels
    assert played.bare


def test_who_could_be_in_time_at_the_lowest_level_is_not_refused() -> None:
    scheduler = Scheduler(SchedulerConfig((curved(),), 1, PolicyConfig("late")))
    scheduler.handle(Arrived("net", 1e3, (0,), (0,)), 0.0)
    # 30 wait: 48 s of work at the lowest level, 84 s at the target
    scheduler.handle(Arrived("net", 1e3, tuple(range(1, 31)), tuple(range(1, 31))), 0.0)
    actions = scheduler.handle(Arrived("net", 1e3, (31,), (31,), priority=0), 0.0)
    assert not actions
    late = scheduler.handle(Arrived("net", 40.0, tuple(range(32, 90)), tuple(range(32, 90))), 0.0)
    assert {action.outcome for action in late if isinstance(action, Reply)} == {Outcome.REFUSED_LATE}


def test_who_has_started_ends_in_time_before_others_start() -> None:
    scheduler = Scheduler(SchedulerConfig((curved(),), 1, PolicyConfig("late")))
    scheduler.handle(Arrived("net", 4.5, (0,), (0,)), 0.0)
    scheduler.handle(Arrived("net", 60.0, tuple(range(1, 11)), tuple(range(1, 11))), 0.5)
    stages = []
    for now in (1.0, 2.0, 3.0):
        (run,) = runs(scheduler.handle(StageDone(0, ()), now))
        assert run.requests == (0,)
        stages.append(run.stage)
    assert stages == [1, 2, 3]
    ended = scheduler.handle(StageDone(0, ()), 4.0)
    assert [one.outcome for one in ended if isinstance(one, Reply)] == [Outcome.ANSWERED]
    assert [run.stage for run in runs(ended)] == [0]


def runs(actions: Sequence[Action]) -> list[Run]:
    return [action for action in actions if isinstance(action, Run)]


def test_who_could_be_in_time_only_by_leaving_early_does_not_start() -> None:
    scheduler = Scheduler(SchedulerConfig((curved(),), 1, PolicyConfig("late")))
    (reply,) = scheduler.handle(Arrived("net", 3.9, (0,), (0,)), 0.0)
    assert isinstance(reply, Reply)
    assert reply.outcome is Outcome.EXPIRED
    assert runs(scheduler.handle(Arrived("net", 4.0, (1,), (1,)), 0.0))


def worded() -> ServedModel:
    """The same for texts, of which a batch takes a second for ten words."""
    model = text(stages=4, per_token=0.1, hits=LEVELS[TARGET].hit_rates)
    return replace(model, costs=replace(model.costs, levels=LEVELS, target=TARGET))


@pytest.mark.parametrize(("model", "lengths"), [(curved(), (1,)), (worded(), (5, 8, 10, 17))])
def test_in_a_crowd_requests_are_shed_before_they_start(model: ServedModel, lengths: Sequence[int]) -> None:
    """What of a class is dropped after its start is hard, so those that are answered would be worse than promised."""
    played, each = Noted(model), [(length, 1) for length in lengths]
    records = played.run(poisson(model, rate=1.2, requests=2000, allowed=20.0, random=Random(3), lengths=each))
    shed = [one for one in records if one.outcome is not Outcome.ANSWERED]
    dropped = sum(one.request in played.levels for one in shed)
    assert len(shed) > 0.3 * len(records)
    assert dropped <= 0.02 * len(records)


def test_the_same_events_choose_the_same_levels() -> None:
    first, second = at_rate(curved(), 0.5)[0], at_rate(curved(), 0.5)[0]
    assert first.levels == second.levels


@pytest.mark.parametrize(
    ("stretch", "free", "level"), [(inf, inf, 0), (1.0, inf, 3), (inf, 1.0, 3), (8.0, inf, 2), (inf, 4.0, 1)]
)
def test_a_level_leaves_in_time_who_waits_and_who_comes(stretch: float, free: float, level: int) -> None:
    depth = Depth(Estimate(curved().spec, curved().costs), len(LEVELS), TARGET, 1.0)
    depth.choose([4.0, 3.0, 2.0, 1.0], stretch, free)
    assert depth.level == level


def test_how_much_longer_all_work_may_take_is_told_by_the_request_with_the_least_time() -> None:
    backlog = Backlog(2)
    assert backlog.stretch(0.0) == inf
    for number, latest in enumerate((40.0, 5.0, 100.0, 3.0)):
        backlog.add((0, float(number), number), 1.0, latest)
    assert backlog.stretch(0.0) == pytest.approx(2 * 3.0 / 4.0)
    assert backlog.stretch(4.0) == pytest.approx(2 * 1.0 / 2.0), "who is late already does not count"


def test_what_other_models_need_of_the_workers_is_not_there_for_depth() -> None:
    def level(others: float) -> int:
        models = Models(Order.DEADLINE)
        lane, other = (Lane(model, models, counts_exits=True) for model in (curved(), chain(STATIC, name="other")))
        for each in (lane, other):
            each.update_work(1)
        for number in range(40):
            lane.add(Request(number, "net", number, 1e6, 20.0 * number))
            other.add(Request(100 + number, "other", number, 1e6, 800.0 - others * (40 - number)))
        lane.choose_level(800.0)
        assert lane.depth is not None
        return lane.depth.level

    assert level(20.0) == 0
    assert level(1.1) == len(LEVELS) - 1


def test_once_levels_are_limited_requests_start_at_those_that_are_left_until_there_are_more_again() -> None:
    scheduler = Scheduler(SchedulerConfig((curved(),), 1, PolicyConfig("late", 4)))

    def started(event: Event, now: float) -> set[int]:
        (run,) = [action for action in scheduler.handle(event, now) if isinstance(action, Run)]
        assert run.stage == 0
        running[:] = run.requests
        return set(run.levels)

    running: list[int] = []
    assert started(Arrived("net", 100.0, tuple(range(40)), tuple(range(40))), 0.0) == {3}
    for levels, expected, now in ((2, 1, 4.0), (len(LEVELS), 3, 8.0), (1, 0, 12.0)):
        assert not [one for one in scheduler.handle(Limited("net", levels), now - 1.0) if isinstance(one, Run)]
        assert started(StageDone(0, tuple(running)), now) == {expected}
    scheduler.check()


@pytest.mark.parametrize("event", [Limited("net", 0), Limited("net", 5), Limited("other", 1)])
def test_a_limit_that_cannot_be_is_refused(event: Limited) -> None:
    scheduler = Scheduler(SchedulerConfig((curved(),), 1, PolicyConfig("late")))
    with pytest.raises(IllegalEvent, match="no such"):
        scheduler.handle(event, 0.0)


# More than can be answered --------------------------------------------------------------------------------------------


def crowded(hits: float = 0.9, *, below: float = 1.0) -> ServedModel:
    """A model whose first stage takes a tenth of a second, and of which most leave behind it at the lower levels."""
    levels = Level(1.0, {0: 0.0}), Level(0.97, {0: hits}), Level(0.95, {0: hits + 0.03}), Level(0.95, {0: hits}, 0.4)
    stages = tuple([Grid((1,), (curve,)) for curve in (Curve((1, 64), (0.1, 6.4)), LINEAR)])
    model = chain(STATIC, STATIC, hit_rates=levels[1].hit_rates)
    costs = replace(model.costs, stages=stages, levels=levels, target=1)
    return replace(model, costs=costs, below=below)


def played_at(
    model: ServedModel, rate: float, *, lengths: Sequence[tuple[int, int]] = ()
) -> tuple[Noted, list[Record]]:
    played = Noted(model)
    some = poisson(model, rate=rate, requests=3000, allowed=3.0, random=Random(3))
    return played, played.run(some)


def test_where_most_leave_at_once_a_crowd_starts_and_those_that_miss_are_dropped() -> None:
    model = crowded()
    strict = replace(model, costs=replace(model.costs, levels=model.costs.levels[:-1]))
    fixed = replace(model, costs=replace(model.costs, levels=(), target=0))
    (ours, here), (_, held), (_, there) = (played_at(one, 8.0) for one in (model, strict, fixed))
    assert {levels[0] for levels in ours.levels.values()} >= {3}
    assert answered(here) > 1.2 * answered(held)
    assert answered(here) > 0.97 * answered(there)


def test_those_that_miss_and_may_be_dropped_wait_for_who_starts_also_where_they_fill_a_batch() -> None:
    model = crowded()
    spec = replace(model.spec, max_batch=4, stages=5, kinds=(STATIC,) * 5)
    stages = tuple([Grid((1,), (Curve((1, 4), (each, 4 * each)),)) for each in (0.02, *[0.25] * 4)])
    _, records = played_at(replace(model, spec=spec, costs=replace(model.costs, stages=stages)), 30.0)
    assert answered(records) > 0.85 * len(records)


def test_texts_of_any_length_start_likewise() -> None:
    model, quick = (text(stages=2, per_token=seconds, hits={0: 0.9}) for seconds in (0.1, 0.01))
    levels = crowded().costs.levels
    stages = quick.costs.stages[0], model.costs.stages[1]
    model = replace(model, costs=replace(model.costs, stages=stages, levels=levels, target=1))
    strict = replace(model, costs=replace(model.costs, levels=levels[:-1]))
    lengths = [(length, 1) for length in (5, 8, 10, 17)]
    records = []
    for one in (model, strict):
        played = Noted(one)
        records.append(
            played.run(poisson(one, rate=8.0, requests=2000, allowed=4.0, random=Random(3), lengths=lengths))
        )
    assert answered(records[0]) > 1.1 * answered(records[1])


def test_texts_that_may_be_dropped_run_before_no_others_that_would_be_late() -> None:
    levels = crowded().costs.levels
    model = text(stages=8, per_token=0.1, hits={0: 0.9})
    model = replace(model, costs=replace(model.costs, levels=levels, target=1))
    strict = replace(model, costs=replace(model.costs, levels=levels[:-1]))
    lengths = [(length, 1) for length in (5, 8, 10, 17)]
    found = []
    for one in (model, strict):
        some = poisson(one, rate=2.0, requests=1500, allowed=18.0, random=Random(3), lengths=lengths)
        found.append(answered(Noted(one).run(some)))
    assert found[0] > 1.1 * found[1]


@pytest.mark.parametrize("hits", [0.3, 0.5, 0.9])
def test_no_more_are_dropped_than_leave_the_answers_as_good_as_promised(hits: float) -> None:
    """Also where nearly all that start could be dropped: then fewer start."""
    model = crowded(hits)
    levels = (*model.costs.levels[:-1], replace(model.costs.levels[-1], dropped=0.2))
    played, records = played_at(replace(model, costs=replace(model.costs, levels=levels)), 12.0)
    ran = [one for one in records if played.levels.get(one.request, [0])[0] == 3]
    dropped = sum(one.outcome is Outcome.EXPIRED for one in ran)
    assert dropped <= 0.2 * len(ran) + SAVED + model.spec.max_batch
    assert dropped
    others = [one for one in records if played.levels.get(one.request, [3])[0] != 3]
    assert sum(one.outcome is Outcome.EXPIRED for one in others) <= 0.05 * max(1, len(others))


def test_where_few_leave_at_once_requests_are_shed_before_they_start() -> None:
    model = crowded(0.2)
    *levels, last = model.costs.levels
    levels.append(replace(last, dropped=0.1))
    played, _ = played_at(replace(model, costs=replace(model.costs, levels=tuple(levels))), 2.0)
    lowest = [levels[0] for levels in played.levels.values() if levels[0] >= 2]
    assert lowest.count(3) < 0.1 * len(lowest)


def test_nobody_is_dropped_below_the_target_once_too_many_are_below_it_or_levels_are_limited() -> None:
    played, _ = played_at(crowded(below=0.0), 8.0)
    assert {levels[0] for levels in played.levels.values()} <= {0, 1}
    depth = Depth(Estimate(crowded().spec, crowded().costs), 3, 1, 1.0, 0.4)
    misses, works = Misses(0.4, 0.1, 0.1, 0.1), [1.1, 0.2, 0.17]
    depth.choose(works, inf, 0.1, misses)
    assert (depth.level, depth.may_drop) == (3, True)
    depth.limit(2)
    depth.choose(works, inf, 0.1, misses)
    assert (depth.level, depth.may_drop) == (1, False)


def test_who_may_not_be_as_sure_as_at_overload_runs_at_the_lowest_level() -> None:
    depth = Depth(Estimate(crowded().spec, crowded().costs), 3, 1, 1.0, 0.4)
    depth.choose([1.1, 0.2, 0.17], inf, 0.1, Misses(0.4, 0.1, 0.1, 0.1))
    assert [depth.own(surest) for surest in (0, 1, 2)] == [3, 3, 2]
    assert depth.start([0, 1, 2]) == [3, 3, 2]


def test_what_is_dropped_is_made_up_for_before_more_may_be() -> None:
    depth = Depth(Estimate(crowded().spec, crowded().costs), 3, 1, 1.0, 0.25)

    def start(requests: int) -> bool:
        depth.choose([1.1, 0.2, 0.17], inf, 0.1, Misses(0.25, 0.1, 0.1, 0.1))
        assert set(depth.start([0] * requests)) == {3}
        return depth.may_drop

    assert start(4)
    for _ in range(int(SAVED)):
        assert depth.may_drop
        depth.drop(3)
    assert not start(3)
    assert start(1)
    depth.drop(2)
    assert depth.may_drop, "at another level"


@pytest.mark.parametrize(("free", "share"), [(0.3, 1.0), (0.2, 1.0), (0.15, 0.95), (0.11, 0.91), (0.05, 0.45)])
def test_the_share_that_is_answered_at_overload(free: float, share: float) -> None:
    """All that start take 0.1 s; the tenth that does not leave then takes a second more, unless it is dropped."""
    assert Misses(0.4, 0.1, 0.1, 0.1).answered(free) == pytest.approx(share, abs=1e-9)
