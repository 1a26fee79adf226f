"""Requests that are refused for want of their model bring it, where it is worth its place, and no one else's end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from latebind.domain.actions import Load, Outcome, Reply, Run
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Footprint
from latebind.domain.events import Arrived, Loaded, LoadFailed, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record
from research.policies import EVICTION
from tests.batching.chains import STATIC, chain
from tests.models import served
from tests.residency.limited import Accounted, asks, with_pieces

SERVED = [name for name in EVICTION if "oracle" not in name and name != "belady"]


def quick(name: str, *, size: int = 2, load: float = 2.0) -> ServedModel:
    """Return a model of two stages that runs for 10 ms and takes `load` seconds to be there."""
    one = served(name, seconds=0.005, per_row=0.0, stages=2, max_batch=8)
    return replace(one, footprint=Footprint((size // 2,) * 2, (load / 2,) * 2))


def shedding(*models: ServedModel, budget: int, policy: str = "late", **residency: Any) -> SchedulerConfig:
    return SchedulerConfig(
        models, 1, PolicyConfig("late"), residency=ResidencyConfig(budget, EVICTION[policy], **residency)
    )


def every(seconds: float, name: str, begin: float, end: float) -> list[tuple[float, str]]:
    return [(begin + seconds * i, name) for i in range(round((end - begin) / seconds))]


def outcomes(records: Sequence[Record], name: str, begin: float = 0.0, end: float = 1e9) -> Counter[str]:
    """Return how requests for a model ended that came in this time."""
    return Counter(r.outcome.name for r in records if r.model == name and begin <= r.arrived < end)


def play(config: SchedulerConfig, *wanted: tuple[float, str], allowed: float = 0.3) -> tuple[Accounted, list[Record]]:
    simulator = Accounted(config)
    return simulator, simulator.run(asks(*sorted(wanted), allowed=allowed))


def come(model: str, number: int, now: float, allowed: float = 0.3) -> Arrived:
    return Arrived(model, now + allowed, (number,), (number,))


@pytest.mark.parametrize("policy", SERVED)
def test_a_model_that_loads_for_longer_than_requests_may_take_comes_soon_after_the_first(policy: str) -> None:
    simulator, records = play(shedding(quick("a"), budget=2, policy=policy), *every(0.1, "a", 0.0, 4.0))
    assert outcomes(records, "a", 0.0, 1.65) == {"REFUSED_LOADING": 17}
    assert outcomes(records, "a", 1.75) == {"ANSWERED": 22}
    assert simulator.loaded == {("a", 0): 1, ("a", 1): 1}


def test_who_is_refused_is_told_when_the_model_is_expected() -> None:
    scheduler = Scheduler(shedding(quick("a"), budget=2, policy="lru"))
    first, load = scheduler.handle(come("a", 0, 0.0), 0.0)
    assert isinstance(first, Load)
    assert isinstance(load, Reply)
    assert (load.outcome, load.waited) == (Outcome.REFUSED_LOADING, 2.0)
    (later,) = scheduler.handle(come("a", 1, 0.5), 0.5)
    assert isinstance(later, Reply)
    assert (later.outcome, later.waited) == (Outcome.REFUSED_LOADING, 1.5)
    scheduler.handle(Loaded("a", (0, 1), 2.0), 2.0)
    assert isinstance(scheduler.handle(come("a", 2, 2.0), 2.0)[0], Run)


def test_a_deadline_that_could_not_be_met_by_a_model_in_memory_brings_none() -> None:
    simulator, records = play(shedding(quick("a"), budget=2), (0.0, "a"), allowed=0.009)
    assert outcomes(records, "a") == {"REFUSED_LATE": 1}
    assert not simulator.loads


def test_of_a_model_that_is_larger_than_memory_as_much_comes_as_fits_for_who_is_refused() -> None:
    simulator, records = play(
        shedding(with_pieces(chain(STATIC, STATIC, STATIC, name="a"), (2, 2, 2)), budget=4),
        *((0.0, "a"), (20.0, "a")),
        allowed=5.0,
    )
    assert [record.outcome for record in records] == [Outcome.REFUSED_LATE, Outcome.ANSWERED]
    assert [load.pieces for load in simulator.loads] == [(0,), (1,), (2,)]


def test_who_waits_for_a_model_has_it_loaded_before_those_that_others_were_refused_for() -> None:
    simulator = Accounted(shedding(quick("a"), quick("b"), quick("c"), budget=6, policy="lru"))
    simulator.run([*asks((0.0, "a"), (0.5, "b"), allowed=0.3), *asks((0.6, "c"), allowed=30.0)])
    assert [load.model for load in simulator.loads] == ["a", "c", "b"]


def test_a_model_that_is_seldom_asked_for_does_not_displace_one_that_is_worth_more() -> None:
    wanted = [*every(0.1, "a", 0.0, 120.0), *every(5.0, "b", 20.0, 120.0)]
    simulator, records = play(shedding(quick("a"), quick("b"), budget=2, window=10.0), *wanted)
    assert {load.model for load in simulator.loads} == {"a"}
    assert outcomes(records, "a", 2.0) == {"ANSWERED": 1180}
    assert outcomes(records, "b") == {"REFUSED_LATE": 20}


def test_a_model_comes_once_it_is_worth_more_than_what_is_there() -> None:
    wanted = [*every(0.1, "a", 0.0, 20.0), *every(5.0, "a", 20.0, 120.0), *every(0.1, "b", 40.0, 120.0)]
    _, records = play(shedding(quick("a"), quick("b"), budget=2, window=10.0), *wanted)
    assert outcomes(records, "b", 60.0) == {"ANSWERED": 600}


@pytest.mark.parametrize("policy", SERVED)
def test_two_models_that_have_room_for_one_do_not_chase_each_other_through_memory(policy: str) -> None:
    wanted = [*every(0.1, "a", 0.0, 200.0), *every(0.1, "b", 0.05, 200.05)]
    simulator, records = play(shedding(quick("a"), quick("b"), budget=2, policy=policy, window=10.0), *wanted)
    assert sum(outcomes(records, name)["ANSWERED"] for name in "ab") >= 0.75 * len(wanted) / 2
    assert len(simulator.evicted) <= 200.0 / (2.0 + 4.0 * 2.0)


def test_a_load_that_failed_is_not_begun_again_at_once() -> None:
    scheduler = Scheduler(shedding(quick("a"), budget=2, policy="lru"))
    scheduler.handle(come("a", 0, 0.0), 0.0)
    scheduler.handle(LoadFailed("a", (0, 1)), 1.0)
    (reply,) = scheduler.handle(come("a", 1, 1.5), 1.5)
    assert isinstance(reply, Reply)
    assert (reply.outcome, reply.waited) == (Outcome.NOT_LOADED, 0.0)
    assert isinstance(scheduler.handle(come("a", 2, 2.5), 2.5)[0], Load)


def test_who_waits_for_cold_models_does_not_have_those_refused_whose_model_is_there() -> None:
    cold = [quick(f"cold-{i}", load=20.0) for i in range(20)]
    slow = [replace(model, costs=served("slow", seconds=0.2, per_row=0.0, stages=2).costs) for model in cold]
    scheduler = Scheduler(shedding(quick("hot", load=0.2), *slow, budget=100, policy="lru"))
    scheduler.handle(come("hot", 0, 0.0, 10.0), 0.0)
    scheduler.handle(Loaded("hot", (0, 1), 0.2), 0.2)
    scheduler.handle(StageDone(0), 0.205)
    scheduler.handle(StageDone(0), 0.21)
    for number, model in enumerate(slow, 1):  # each has 400 ms of work
        scheduler.handle(come(model.spec.name, number, 0.3, 1000.0), 0.3)
    assert scheduler.stats()["queued"] == 20
    assert isinstance(scheduler.handle(come("hot", 50, 0.4), 0.4)[0], Run)
    scheduler.check()


def test_nobody_is_held_for_one_who_waited_too_long_and_has_gone() -> None:
    slow = with_pieces(served("a", seconds=20.0, per_row=0.0, stages=1, max_batch=1), (4,), seconds=0.1)
    late = with_pieces(served("b", seconds=1.0, per_row=0.0, stages=1), (8,), seconds=0.1)
    config = shedding(slow, late, budget=8, patience=1.0)
    wanted = [*asks((0.0, "a"), stages=1, allowed=100.0), *asks((5.0, "b"), stages=1, allowed=10.0)]
    records = Accounted(config).run([*wanted, *asks((16.0, "a"), stages=1, allowed=100.0)])
    assert [(r.model, r.outcome.name) for r in sorted(records, key=lambda r: r.arrived)] == [
        ("a", "ANSWERED"),
        ("b", "EXPIRED"),
        ("a", "ANSWERED"),
    ]
