"""Stages that are there in part: what goes is what is missing, and what is loaded is what is not there."""

from collections.abc import Mapping

import pytest

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.domain.errors import IllegalEvent
from latebind.residency.late import Late
from latebind.residency.memory import Memory
from latebind.residency.model_state import LoadState
from latebind.residency.policy import Victim
from research.hardware.sequential import SequentialReplay
from research.mcache.traces import Request

GRAIN = 10


def stages(*sizes: int, fixed: float = 0.0, runs: tuple[float, ...] = ()) -> Footprint:
    """A model whose bytes take a second each, of which any tens may stay."""
    return Footprint(sizes, tuple(map(float, sizes)), fixed=fixed, grain=GRAIN, runs=runs)


def filled(budget: int, others: Mapping[str, Footprint] | None = None, **models: Footprint) -> tuple[Memory, Late]:
    """All models but "new" in memory; the first was asked for least."""
    memory, policy = Memory(budget, {**(others or {}), **models}), Late(ResidencyConfig())
    for place, model in enumerate(memory.models.values()):
        for turn in range(10 * (place + 1)):
            policy.requested(model, turn / (place + 1))
        if model.name != "new":
            memory.begin(model.name, model.missing)
            policy.loaded(memory.loaded(model.name, model.missing or model.loading), 10.0)
    return memory, policy


def chosen(memory: Memory, policy: Late, need: int, *, wanted: str = "new", waiting: int = 0) -> list[Victim]:
    victims = policy.victims(memory.view(waiting), need, memory.models[wanted], 10.0)
    for victim in victims:
        memory.evict(victim)
    memory.check()
    return victims


def test_only_so_much_of_the_last_stage_goes_as_is_missing() -> None:
    memory, policy = filled(200, rare=stages(50, 50), common=stages(50, 50), new=stages(50))
    assert chosen(memory, policy, 61) == [Victim("rare", (1,), (0, 30))]
    assert memory.free == 70
    assert memory.models["rare"].phase is LoadState.PARTIAL
    assert chosen(memory, policy, 11) == [Victim("rare", (), (0, 10))]


def test_where_a_backend_cannot_keep_a_part_stages_go_whole() -> None:
    whole = Footprint((50, 50), (50.0, 50.0))
    memory, policy = filled(200, rare=whole, common=stages(50, 50), new=stages(50))
    assert chosen(memory, policy, 11) == [Victim("rare", (1,))]


def test_what_saves_the_fixed_part_of_a_load_goes_last() -> None:
    memory, policy = filled(200, rare=stages(50, 50, fixed=99.0), common=stages(50, 50), new=stages(50))
    assert chosen(memory, policy, 100) == [Victim("rare", (1,), (0, 10)), Victim("common", (), (1, 40))]
    assert chosen(memory, policy, 100) == [Victim("common", (1, 0)), Victim("rare", (0,))]
    assert memory.used == 0


def test_what_is_there_in_part_does_not_run_and_loads_the_rest() -> None:
    memory, policy = filled(100, rare=stages(50, 50), new=stages(50))
    chosen(memory, policy, 20)
    rare = memory.models["rare"]
    assert (rare.missing, rare.missing_bytes((1,))) == ((1,), 20)
    assert rare.load_seconds == pytest.approx(20.0)
    memory.begin("rare", (1,))
    assert memory.free == 0
    assert rare.evictable_pieces() == (0,)
    memory.check()
    assert memory.loaded("rare", (1,)).complete
    memory.check()


def test_a_load_that_fails_leaves_nothing_of_its_stage() -> None:
    memory, policy = filled(100, rare=stages(50, 50), new=stages(50))
    chosen(memory, policy, 20)
    memory.begin("rare", (1,))
    memory.failed("rare", (1,))
    memory.check()
    assert memory.used == 50


@pytest.mark.parametrize("part", [(1, 50), (1, 0), (1, 15), (2, 10)])
def test_no_other_parts_may_stay(part: tuple[int, int]) -> None:
    footprint = Footprint((50, 50, 20), (1.0, 1.0, 1.0), (0,), (1.0,), grain=GRAIN)
    memory = Memory(120, {"a": footprint})
    memory.begin("a", (0, 1, 2))
    memory.loaded("a", (0, 1, 2))
    with pytest.raises(IllegalEvent, match="cannot stay"):
        memory.evict(Victim("a", (), part))


def test_in_half_of_its_memory_a_model_loads_the_other_half() -> None:
    order = SequentialReplay(70, {"a": stages(30, 30, 30, 30, fixed=5.0)}, Late(ResidencyConfig()))
    first, *others = order.run([Request(float(time), "a") for time in range(5)])
    order.memory.check()
    assert first.bytes == 120
    assert first.seconds == pytest.approx(125.0)
    assert all(50 <= one.bytes == one.seconds <= 80 for one in others)  # 30 are the window that the last stage runs in


def test_what_would_come_while_stages_before_it_run_goes_first() -> None:
    common = stages(50, 50, runs=(25.0, 25.0))
    memory, policy = filled(200, rare=stages(50, 50), common=common, new=stages(50))
    assert chosen(memory, policy, 30) == [Victim("common", (), (1, 30)), Victim("rare", (), (1, 40))]


def test_of_several_stages_each_has_to_come_before_those_in_front_have_run() -> None:
    long = stages(50, 20, 20, 50, runs=(25.0, 5.0, 5.0, 5.0))
    memory, policy = filled(400, rare=stages(50, 50), common=long, new=stages(50))
    assert chosen(memory, policy, 30) == [Victim("common", (), (3, 20))]
    memory, policy = filled(400, rare=stages(50, 50), common=stages(50, 20, 20, runs=(15.0, 15.0, 5.0)), new=stages(50))
    assert chosen(memory, policy, 40) == [Victim("common", (2,), (1, 10)), Victim("rare", (), (1, 40))]


def test_while_others_wait_loads_have_no_time_for_what_would_come_meanwhile() -> None:
    common = stages(50, 50, runs=(25.0, 25.0))
    memory, policy = filled(200, rare=stages(50, 50), common=common, new=stages(50))
    assert chosen(memory, policy, 30, waiting=1) == [Victim("rare", (), (1, 20))]


def test_of_a_model_that_is_loaded_nothing_comes_meanwhile() -> None:
    common = stages(50, 50, runs=(25.0, 25.0))
    memory, policy = filled(200, rare=stages(50, 50), common=common, new=stages(50))
    assert chosen(memory, policy, 30, wanted="common") == [Victim("rare", (), (1, 20))]


def test_a_request_waits_for_nothing_that_comes_while_it_runs() -> None:
    policy = Late(ResidencyConfig())
    order = SequentialReplay(100, {"a": stages(50, 50, runs=(25.0, 25.0)), "b": stages(20)}, policy)
    asked = [Request(float(time), name) for time, name in enumerate("aaaaba")]
    served = order.run(asked)
    assert [(one.seconds, one.bytes) for one in served[:5]] == [(75.0, 100), (0.0, 0), (0.0, 0), (0.0, 0), (20.0, 20)]
    assert (served[5].seconds, served[5].bytes) == (0.0, 20)


def test_admission_counts_what_a_request_waits_for_where_stages_run_as_they_come() -> None:
    common = stages(50, 50, fixed=9.0, runs=(25.0, 25.0))
    memory, policy = filled(200, common=common, new=stages(50))
    assert memory.models["common"].wait_seconds == 0.0
    chosen(memory, policy, 30)
    assert memory.models["common"].wait_seconds == pytest.approx(30.0 - 25.0)
    chosen(memory, policy, 70)
    assert memory.models["common"].wait_seconds == pytest.approx(9.0 + 100.0 - 25.0)


def test_with_many_models_nothing_is_told_apart_that_would_come_meanwhile() -> None:
    common = stages(50, 50, runs=(25.0, 25.0))
    few, many = ({f"rare-{place:02}": stages(20) for place in range(count)} for count in (3, 64))
    memory, policy = filled(2000, few, common=common, new=stages(50))
    assert [victim.model for victim in chosen(memory, policy, 10)] == ["common"]
    memory, policy = filled(2000, many, common=common, new=stages(50))
    assert [victim.model for victim in chosen(memory, policy, 10)] == ["rare-00"]
