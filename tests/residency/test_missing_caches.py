"""Which learned cache is loaded next, where no request waits for the place."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from latebind.domain.actions import Action, Load
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Footprint
from latebind.domain.events import Arrived, Loaded, LoadFailed, StageDone, Woke
from latebind.scheduler import Scheduler
from tests.models import served

CACHES = Footprint((4, 4, 3, 1), (1.0,) * 4, behind=(0, 1), gains=(0.5, 0.5))


def model(name: str, footprint: Footprint = CACHES) -> ServedModel:
    return replace(served(name, stages=2, hit_rates={0: 0.1}), footprint=footprint)


def loads(actions: Sequence[Action]) -> list[tuple[str, tuple[int, ...]]]:
    return [(action.model, action.pieces) for action in actions if isinstance(action, Load)]


def in_use(budget: int, *names: str) -> tuple[Scheduler, list[tuple[str, tuple[int, ...]]]]:
    """All stages of these models are in memory and each has answered a request; returns what is loaded then too."""
    residency = ResidencyConfig(budget, back_off=1.0)
    scheduler = Scheduler(SchedulerConfig(tuple(map(model, names)), policy=PolicyConfig("late"), residency=residency))
    found: list[tuple[str, tuple[int, ...]]] = []
    for number, name in enumerate(names):
        actions = scheduler.handle(Arrived(name, 1e6, (number,), (number,)), 0.0)
        for _ in range(2):
            found = loads(actions) or found
            actions = scheduler.handle(Loaded(*found[0], 1.0), 0.0)
        for _ in range(2):
            found = loads(actions) or found
            actions = scheduler.handle(StageDone(0), 0.0)
    scheduler.check()
    return scheduler, loads(actions) or found


def test_caches_are_loaded_one_by_one_once_all_stages_are_in_memory() -> None:
    scheduler, first = in_use(100, "a")
    assert first == [("a", (2,))]
    assert loads(scheduler.handle(Loaded("a", (2,), 1.0), 1.0)) == [("a", (3,))]
    assert scheduler.handle(Loaded("a", (3,), 1.0), 2.0) == []


@pytest.mark.parametrize(("free", "piece"), [(0, None), (2, 3), (3, 2)])
def test_the_first_cache_that_fits_is_loaded(free: int, piece: int | None) -> None:
    scheduler, first = in_use(8 + free, "a")
    assert first[0][1] == ((piece,) if piece is not None else (1,))
    scheduler.check()


def test_a_cache_that_cannot_be_loaded_is_tried_again_later_and_the_next_one_is_loaded() -> None:
    scheduler, first = in_use(100, "a")
    assert first == [("a", (2,))]
    assert loads(scheduler.handle(LoadFailed("a", (2,)), 1.0)) == [("a", (3,))]
    assert scheduler.handle(Loaded("a", (3,), 1.0), 1.5) == []
    assert loads(scheduler.handle(Woke(), 2.0)) == [("a", (2,))]
    assert loads(scheduler.handle(LoadFailed("a", (2,)), 2.5)) == []
    assert loads(scheduler.handle(Woke(), 4.4)) == []  # twice as long after the second time
    assert loads(scheduler.handle(Woke(), 4.5)) == [("a", (2,))]
