"""The rules of the routers, on clusters of a few machines."""

import pytest

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.fleet import Fleet, MachineKind
from latebind.simulation.cluster.routing import Choice, Router, Sight
from latebind.simulation.cluster.tables import tables_of
from tests.simulation.cluster.fleets import fleet, model

MILLI = 1_000_000  # nanoseconds


def sight(machines: int = 3, *, load: float = 0.02, allowed: float = 0.2) -> Sight:
    """Machines with one model that takes 10 ms alone; nothing lies anywhere."""
    return Sight(tables_of(fleet(machines, model("net", load=load, allowed=allowed))))


def chosen(router: Router, words: list[int]) -> list[int]:
    return [router.choose(0, word).machine for word in words]


def test_a_router_of_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no router 'nearest': take one of random, round-robin"):
        Router("nearest", sight())


@pytest.mark.parametrize("name", ["random", "round-robin", "least-loaded", "two-choices", "home"])
def test_nobody_is_chosen_where_nobody_is_up(name: str) -> None:
    seen = sight(1)
    seen.falls(0)
    assert Router(name, seen).choose(0, 7) == Choice(-1, -1)


def test_random_takes_the_machine_that_was_drawn_among_those_up() -> None:
    seen = sight(3)
    seen.falls(1)
    assert chosen(Router("random", seen), [0, 1, 2, 3]) == [0, 2, 0, 2]


def test_round_robin_goes_on_behind_the_last_and_over_those_that_are_gone() -> None:
    seen = sight(3)
    router = Router("round-robin", seen)
    assert chosen(router, [0] * 4) == [0, 1, 2, 0]
    seen.falls(1)
    assert chosen(router, [0] * 2) == [2, 0]
    seen.rises(1)
    assert chosen(router, [0]) == [1]


def test_least_loaded_takes_the_fewest_unanswered_and_of_equal_ones_the_next() -> None:
    seen = sight(3)
    router = Router("least-loaded", seen)
    assert chosen(router, [0] * 3) == [0, 1, 2]
    seen.sent(0, 0)
    seen.sent(1, 0)
    assert chosen(router, [0]) == [2]
    seen.replied(0, 0)
    assert chosen(router, [0]) == [0]


def test_two_choices_takes_the_less_loaded_of_two_that_were_drawn() -> None:
    seen = sight(3)
    router = Router("two-choices", seen)
    second = 1 << 32  # 1 modulo 3
    assert chosen(router, [0, second + 1]) == [0, 2], "of equal ones the first"
    seen.sent(0, 0)
    assert chosen(router, [0]) == [1]
    assert chosen(router, [second + 2]) == [2]


def test_home_takes_the_home_with_the_least_work() -> None:
    seen = sight(3)
    seen.homes = ((2, 1),)
    router = Router("home", seen)
    assert chosen(router, [0]) == [2], "of equal ones the first"
    seen.came(1, [0])
    assert chosen(router, [0]) == [1], "where it need not be loaded"
    for _ in range(10):
        seen.sent(1, 0)
    assert chosen(router, [0]) == [2]


def test_home_goes_to_whoever_has_the_model_where_no_home_can_be_in_time() -> None:
    seen = sight(3, load=0.5)
    seen.homes = ((0,),)
    seen.came(2, [0])
    router = Router("home", seen)
    assert router.choose(0, 0) == Choice(2, 0)
    seen.came(1, [0])
    assert router.choose(0, 0) == Choice(1, 0), "of equal ones the lowest number"
    seen.falls(1)
    seen.falls(2)
    assert router.choose(0, 0) == Choice(0, -1), "its best home where nobody can be in time"


def test_home_takes_any_machine_where_none_of_the_homes_is_up() -> None:
    seen = sight(3)
    seen.homes = ((0,),)
    seen.falls(0)
    seen.came(2, [0])
    assert chosen(Router("home", seen), [0]) == [2]


def test_what_to_expect_is_the_work_before_it_or_the_load_and_its_own_time() -> None:
    pair = Fleet((MachineKind("a", 1000), MachineKind("b", 1000, workers=2, speed=2.0, loading=3.0)), (model("net"),))
    seen = Sight(tables_of(pair))
    assert [seen.expected(machine, 0) for machine in (0, 1)] == [30 * MILLI, 65 * MILLI]
    seen.came(0, [0])
    seen.came(1, [0])
    for machine in (0, 1):
        for _ in range(4):
            seen.sent(machine, 0)
    # Batches of four take 16 ms, on the quicker machine 8, with two workers at once.
    assert [seen.expected(machine, 0) for machine in (0, 1)] == [(16 + 10) * MILLI, (4 + 5) * MILLI]


def test_a_trial_is_needed_where_loading_takes_longer_than_a_request_may() -> None:
    assert not sight(load=0.19).lacks(0, 0)
    slow = sight(load=0.1901)
    assert slow.lacks(0, 0)
    slow.came(0, [0])
    assert not slow.lacks(0, 0)
    slow.tried.add((1, 0))
    assert not slow.lacks(1, 0), "one is under way"


def test_all_homes_come_to_have_a_model_one_by_one() -> None:
    seen = sight(3, load=0.5)
    seen.homes = ((2, 0),)
    router = Router("home", seen)
    assert router.choose(0, 0) == Choice(2, 0), "who gets the request is asked by it"
    seen.tried.add((0, 0))
    assert router.choose(0, 0) == Choice(2, -1)
    seen.came(0, [0])
    assert router.choose(0, 0) == Choice(0, 2)
    seen.came(2, [0])
    assert router.choose(0, 0) == Choice(2, -1)


def test_without_homes_the_machine_that_ought_to_have_a_model_has_it_where_another_answers() -> None:
    seen = sight(3, load=0.5)
    router = Router("home", seen)
    assert router.choose(0, 0) == Choice(0, -1)
    seen.came(2, [0])
    for _ in range(20):
        seen.sent(2, 0)
    assert router.choose(0, 0) == Choice(2, -1)
