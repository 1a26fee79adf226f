"""Where models belong: the important ones have a home with room, the busy ones several."""

from hypothesis import given
from hypothesis import strategies as st

from latebind.cluster.placement import ModelDemand, Place, place


def model(size: int = 1, *, rate: float = 1.0, penalty: float = 1.0, work: float = 0.1) -> ModelDemand:
    return ModelDemand(size, penalty, work, rate)


def places(*free: int, resident: dict[int, set[str]] | None = None) -> list[Place]:
    found = resident or {}
    return [Place(f"r{number}", size, frozenset(found.get(number, ()))) for number, size in enumerate(free)]


def test_models_that_do_not_fit_together_go_to_different_replicas() -> None:
    homes = place({"a": model(3), "b": model(3)}, places(4, 4))
    assert sorted(home for (home,) in homes.values()) == ["r0", "r1"]


def test_a_model_stays_where_it_lies() -> None:
    homes = place({"a": model(3, rate=5.0), "b": model(3)}, places(4, 4, resident={0: {"b"}, 1: {"a"}}))
    assert homes == {"a": ("r1",), "b": ("r0",)}


def test_the_important_ones_get_the_room() -> None:
    models = {"rare": model(4, rate=0.01), "often": model(4, rate=10.0), "slow to load": model(4, penalty=20.0)}
    homes = place(models, places(4, 4))
    assert sorted(homes["often"] + homes["slow to load"]) == ["r0", "r1"]
    assert len(homes["rare"]) == 1


def test_what_memory_is_left_goes_to_the_busiest() -> None:
    homes = place({"busy": model(2, rate=90.0), "calm": model(2, rate=1.0)}, places(3, 2, 2))
    assert (len(homes["busy"]), len(homes["calm"])) == (2, 1)


def test_where_all_fits_everywhere_all_is_everywhere() -> None:
    homes = place({"a": model(), "b": model()}, places(2, 2, 2))
    assert [len(found) for found in homes.values()] == [3, 3]


def test_a_model_that_fits_nowhere_has_a_home_all_the_same() -> None:
    assert place({"huge": model(100)}, places(4, 8)) == {"huge": ("r1",)}


def test_without_replicas_there_are_no_homes() -> None:
    assert place({"a": model()}, []) == {}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 100), st.floats(0, 10)), max_size=12),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
def test_every_model_has_homes_and_further_ones_only_where_there_is_room(
    given_models: list[tuple[int, float, float]], free: list[int]
) -> None:
    models = {f"m{number}": model(size, rate=rate, penalty=p) for number, (size, rate, p) in enumerate(given_models)}
    found = places(*free)
    homes = place(models, found)
    assert set(homes) == set(models)
    assert all(len(set(where)) == len(where) >= 1 for where in homes.values())
    firsts: dict[str, int] = {}
    for name, where in homes.items():
        firsts[where[0]] = firsts.get(where[0], 0) + models[name].size
    for p, size in zip(found, free, strict=True):
        assert p.free == size - sum(models[name].size for name in p.models)
        assert p.free >= 0 or firsts.get(p.name, 0) > size
