"""Where models belong as an ingress sees it: by the calls that come and by what replicas tell."""

from typing import Any

from latebind.cluster.homes import PERIOD, Homes, figures_of


def told(budget: int, **resident: int) -> dict[str, Any]:
    return {"budget": budget, "models": {name: (there, 4, 1.0, 0.1) for name, there in resident.items()}}


def test_without_limits_of_memory_models_are_at_home_nowhere_in_particular() -> None:
    homes = Homes(allowed=10.0, workers=1)
    homes.settle([("r0", {}), ("r1", {})], 0.0)
    assert homes.of == {}


def test_models_stay_where_they_lie_and_busy_ones_spread_where_there_is_room() -> None:
    homes = Homes(allowed=10.0, workers=1)
    replicas = [("r0", told(4, a=4, b=0)), ("r1", told(8, a=0, b=4))]
    homes.settle(replicas, 0.0)
    assert homes.of == {"a": ("r0",), "b": ("r1",)}
    for _ in range(50):
        homes.note("a")
    homes.settle(replicas, PERIOD)
    assert homes.of == {"a": ("r0", "r1"), "b": ("r1",)}


def test_placement_waits_for_its_time() -> None:
    homes = Homes(allowed=10.0, workers=1)
    homes.settle([("r0", told(4, a=4))], 0.0)
    homes.settle([("r1", told(4, a=4))], PERIOD / 2)
    assert homes.of == {"a": ("r0",)}


def test_figures_are_of_memory_where_it_is_limited() -> None:
    assert figures_of({"models": {}}) == {}
    load = {"sum": 3.0, "count": 2}
    model = {"requests": {"answered": 4}, "run_seconds": {"1": 1.0, "2": 1.0}}
    memory = {"budget_bytes": 9, "models": {"a": {"resident_bytes": 5, "bytes": 6, "load_seconds": load}}}
    assert figures_of({"models": {"a": model}, "memory": memory}) == {"budget": 9, "models": {"a": (5, 6, 1.5, 0.5)}}
