"""Utility and rank as mCache defines them, and the queue: fresh where nothing is stale, and soon where something is."""

from random import Random

import pytest

from latebind.residency.importance import FEW, LOWEST, SLICE, ImportanceQueue
from latebind.residency.memory import ModelState
from tests.residency.memories import sized


def models(count: int) -> dict[str, ModelState]:
    return {f"m{number}": ModelState(f"m{number}", sized()) for number in range(count)}


@pytest.mark.parametrize("count", [FEW // 2, 5 * FEW])
def test_the_queue_is_a_fresh_ranking_where_nothing_is_stale(count: int) -> None:
    random, every = Random(1), models(count)
    worth = {name: random.random() for name in every}
    queue = ImportanceQueue(lambda model, now: worth[model.name])
    for turn in range(1000):
        name = random.choice(list(every))
        if every[name] in queue and turn % 3 == 0:
            queue.remove(every[name])
        else:
            worth[name] = random.random()
            queue.put(every[name], float(turn))
        if turn % 50 == 0:
            among = {name: model for name, model in every.items() if random.random() < 0.8 and model in queue}
            assert [m.name for m in queue.ascending(among, float(turn))] == sorted(among, key=worth.__getitem__)


def test_scores_that_have_risen_do_not_put_the_order_out() -> None:
    every = models(5 * FEW)
    worth = {name: float(place) for place, name in enumerate(every)}
    queue = ImportanceQueue(lambda model, now: worth[model.name])
    for model in every.values():
        queue.put(model, 0.0)
    for name in list(every)[: 2 * LOWEST]:  # more than are looked at in any case
        worth[name] += 1000.0
    assert [m.name for m in queue.ascending(every, 1.0)] == sorted(every, key=worth.__getitem__)


def test_scores_that_have_fallen_are_found_within_two_turns_of_the_shadow() -> None:
    every = models(5 * FEW)
    worth = {name: float(place) for place, name in enumerate(every)}
    queue = ImportanceQueue(lambda model, now: worth[model.name])
    for model in every.values():
        queue.put(model, 0.0)
    worth["m300"] = -1.0
    assert next(queue.ascending(every, 1.0)).name == "m0"
    for _ in range(2 * len(every) // SLICE + 1):
        queue.tidy(1.0)
    assert next(queue.ascending(every, 1.0)).name == "m300"


def test_what_is_worth_more_than_was_told_is_in_its_place_once_something_has_come() -> None:
    every = models(5 * FEW)
    looks: list[str] = []
    worth = {name: float(place) for place, name in enumerate(every)}

    def score(model: ModelState, now: float) -> float:
        looks.append(model.name)
        return worth[model.name] - 1e-6 * now

    queue = ImportanceQueue(score)
    for model in every.values():
        queue.put(model, 0.0)
    for place in range(40):
        worth[f"m{place}"] = 1000.0
    assert next(queue.ascending(every, 1.0)).name == "m40"
    queue.tidy(1.0)
    looks.clear()
    assert next(queue.ascending(every, 2.0)).name == "m40"
    assert len(looks) < 10


def test_who_goes_while_the_shadow_is_built_does_not_come_back_with_it() -> None:
    every = models(2 * FEW)
    queue = ImportanceQueue(lambda model, now: float(model.name[1:]))
    for model in every.values():
        queue.put(model, 0.0)
    for turn in range(200):
        if turn == 20:
            queue.remove(every["m0"])
        found = [model.name for model in queue.ascending({n: m for n, m in every.items() if m in queue}, 0.0)]
    assert found == [f"m{number}" for number in range(1, 2 * FEW)]
