"""Which learned cache comes next, where nobody else wants the place."""

from latebind.domain.costs import Footprint
from latebind.residency.loading import MissingCaches
from latebind.residency.memory import Memory
from latebind.residency.policy import Victim

LEARNED = Footprint((4, 4, 3, 1), (1.0,) * 4, behind=(0, 1), gains=(0.5, 0.5))


def memory() -> Memory:
    return Memory(100, {"a": LEARNED, "b": LEARNED, "plain": Footprint((4,), (1.0,))})


def come(memory: Memory, caches: MissingCaches, name: str, *pieces: int) -> None:
    memory.begin(name, pieces)
    caches.update(memory.loaded(name, pieces))


def test_caches_come_one_by_one_once_all_stages_are_there() -> None:
    there, caches = memory(), MissingCaches(1.0)
    come(there, caches, "a", 0)
    assert caches.next(100, 0.0) is None
    come(there, caches, "a", 1)
    assert caches.next(100, 0.0) == (there.models["a"], 2)
    come(there, caches, "a", 2)
    assert caches.next(100, 0.0) == (there.models["a"], 3)
    come(there, caches, "a", 3)
    assert caches.next(100, 0.0) is None


def test_the_first_cache_comes_that_fits() -> None:
    there, caches = memory(), MissingCaches(1.0)
    come(there, caches, "plain", 0)
    come(there, caches, "b", 0, 1, 2)
    come(there, caches, "a", 0, 1)
    assert [caches.next(free, 0.0) for free in (-1, 0)] == [None, None]
    assert caches.next(1, 0.0) == (there.models["b"], 3)
    come(there, caches, "b", 3)
    assert caches.next(2, 0.0) == (there.models["a"], 3)
    assert caches.next(3, 0.0) == (there.models["a"], 2)


def test_a_cache_that_has_gone_may_come_again_and_one_of_a_model_that_lost_a_stage_may_not() -> None:
    there, caches = memory(), MissingCaches(1.0)
    come(there, caches, "a", 0, 1, 2, 3)
    caches.update(there.evict(Victim("a", (3,))))
    assert caches.next(100, 0.0) == (there.models["a"], 3)
    caches.update(there.evict(Victim("a", (1,))))
    assert caches.next(100, 0.0) is None


def test_a_cache_that_cannot_be_loaded_is_left_alone_for_a_while_and_the_next_one_comes() -> None:
    there, caches = memory(), MissingCaches(1.0)
    come(there, caches, "a", 0, 1)
    caches.failed(there.models["a"], (2,), 0.0)
    assert caches.next(100, 0.5) == (there.models["a"], 3)
    come(there, caches, "a", 3)
    assert caches.next(100, 0.5) is None
    assert caches.next(100, 1.0) == (there.models["a"], 2)
    caches.failed(there.models["a"], (2,), 1.0)
    assert caches.next(100, 2.5) is None
    caches.loaded(there.models["a"], (2,))
    assert caches.next(100, 2.5) == (there.models["a"], 2)
