"""Which replica gets a call: by homes, by what replicas report, by the calls under way, and by who was lost."""

from latebind.cluster.placement import Costs, Report
from latebind.cluster.routing import ASKED_AGAIN, FIRST, PERIOD, Replica, Router

COSTS = {"net": Costs(100, 0.5, 0.004, 0.2), "other": Costs(100, 0.5, 0.004, 0.2)}


def router(*replicas: Replica, homes: tuple[str, ...] = (), most: int = 256) -> Router:
    found = Router(most=most)
    found.see(replicas, 0.0)
    found.homes = {"net": homes}
    return found


def limited(name: str, *resident: str) -> Replica:
    return Replica(name, Report(1000, COSTS, resident))


def chosen(
    found: Router, count: int, *, now: float = 0.0, model: str = "net", tried: tuple[str, ...] = ()
) -> list[str]:
    some = [found.choose(model, now, tried) for _ in range(count)]
    return [one.name if one is not None else "" for one in some]


def test_without_limits_of_memory_replicas_take_turns_and_the_busier_one_waits() -> None:
    a, b = Replica("a"), Replica("b")
    found = router(a, b)
    assert chosen(found, 4) == ["a", "b", "a", "b"]
    a.under_way = 1
    assert chosen(found, 2) == ["b", "b"]


def test_calls_go_to_the_homes_that_have_the_model() -> None:
    found = router(limited("a", "net"), limited("b", "net"), limited("c", "net"), homes=("b", "c"))
    assert chosen(found, 4) == ["b", "c", "b", "c"]


def test_a_home_that_lacks_the_model_gets_one_call_a_second_until_it_has_it() -> None:
    a, b = limited("a", "net"), limited("b")
    found = router(a, b, homes=("a", "b"))
    assert chosen(found, 3) == ["b", "a", "a"], "the first call makes it load the model"
    assert chosen(found, 2, now=ASKED_AGAIN) == ["b", "a"]
    b.report = Report(1000, COSTS, ("net",))
    assert set(chosen(found, 4, now=ASKED_AGAIN)) == {"a", "b"}


def test_a_replica_that_has_the_model_from_earlier_on_answers_while_its_home_loads_it() -> None:
    found = router(limited("a", "net"), limited("b"), homes=("b",))
    assert chosen(found, 3) == ["b", "a", "a"]
    a = limited("a")
    assert chosen(router(a, limited("b"), homes=("b",)), 3) == ["b", "b", "b"], "nobody has it"
    assert router(a).choose("nobody", 0.0) is a
    assert a.asked == {}, "names that no replica serves are not kept"


def test_a_home_with_as_many_calls_as_it_takes_gets_no_more() -> None:
    a, b = limited("a", "net"), limited("b")
    found = router(a, b, homes=("a",), most=1)
    a.under_way = 1
    assert chosen(found, 1) == ["b"]
    b.silent = True
    assert chosen(found, 1) == [""]


def test_replicas_that_were_tried_or_may_be_lost_come_last() -> None:
    a, b, c = Replica("a"), Replica("b"), Replica("c")
    found = router(a, b, c)
    b.suspect_until = 1.0
    assert chosen(found, 1, tried=("a",)) == ["c"]
    c.silent = True
    assert chosen(found, 2, tried=("a",)) == ["b", "b"], "suspected, but not tried"
    assert chosen(found, 2, now=1.0) == ["a", "b"]


def test_models_are_placed_at_once_by_the_first_rates_and_every_minute() -> None:
    found = Router()
    seen, busy = [], "net"
    for now in (0.0, 1.0, FIRST, FIRST + 1, FIRST + PERIOD):
        found.see([limited("a"), limited("b")], now)
        seen.append([len(homes) for homes in (found.homes["net"], found.homes["other"])])
        for _ in range(2000 if now < FIRST else 40_000):
            assert found.choose(busy, now) is not None
        busy = "other"
    assert seen[:4] == [[1, 1], [1, 1], [2, 2], [2, 2]]
    assert len(found.homes["other"]) == 2


def test_models_are_placed_anew_as_soon_as_a_replica_is_gone() -> None:
    found = Router()
    a, b = limited("a", "net"), limited("b")
    found.see([a, b], 0.0)
    assert found.homes["net"] == ("a",)
    found.see([b], 0.5)
    assert found.homes["net"] == ("b",)
