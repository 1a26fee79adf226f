"""What `late` lets go: pieces, the last ones first, of whoever is asked for last; the wanted model's own as well."""

import pytest

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.residency.importance import FEW
from latebind.residency.late import Late
from latebind.residency.memory import Memory
from latebind.residency.policy import Victim
from tests.residency.memories import load, sized


def memory_of(policy: Late, budget: int = 100, **models: Footprint) -> Memory:
    """All models but "new" in memory; each was asked for once more often than the one before it, five seconds apart."""
    memory = Memory(budget, models)
    for place, model in enumerate(memory.models.values()):
        for turn in range(20):
            if turn % (len(models) - place) == 0:
                policy.requested(model, 5.0 * turn)
        if model.name != "new":
            load(memory, policy, model.name, 100.0)
    return memory


def test_the_last_stages_of_the_rarest_model_go_first() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(2, stages=4), common=sized(2, stages=4), new=sized())
    assert policy.victims(memory.view(), 4, memory.models["new"], 100.0) == [Victim("rare", (3, 2))]
    assert policy.victims(memory.view(), 9, memory.models["new"], 100.0) == [
        Victim("rare", (3, 2, 1, 0)),
        Victim("common", (3,)),
    ]


def test_a_byte_that_takes_longer_to_come_back_stays() -> None:
    policy = Late(ResidencyConfig())
    slow, quick = sized(2, stages=4, seconds=90.0), sized(2, stages=4)
    memory = memory_of(policy, rare=slow, common=quick, new=sized())
    assert policy.victims(memory.view(), 2, memory.models["new"], 100.0) == [Victim("common", (3,))]


def test_what_is_not_needed_in_the_end_stays() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(1, stages=2), common=sized(8, stages=2), new=sized())
    assert policy.victims(memory.view(), 9, memory.models["new"], 100.0) == [
        Victim("rare", (1,)),
        Victim("common", (1,)),
    ]


def test_a_model_that_requests_wait_for_stays() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(2, stages=4), common=sized(2, stages=4), new=sized())
    assert policy.victims(memory.view(), 2, memory.models["new"], 100.0) == [Victim("rare", (3,))]
    rare = memory.models["rare"]
    rare.waiting, rare.queue_position = 1, 0
    assert policy.victims(memory.view(waiting=1), 2, memory.models["new"], 100.0) == [Victim("common", (3,))]


def test_of_those_waited_for_the_one_goes_that_is_served_last() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(), common=sized(), new=sized())
    for name, place in (("rare", 0), ("common", 7)):
        memory.models[name].waiting, memory.models[name].queue_position = 1, place
    assert policy.victims(memory.view(waiting=8), 1, memory.models["new"], 100.0) == [Victim("common", (0,))]


def test_a_rare_model_passes_through_a_part_of_the_memory_that_is_smaller_than_itself() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(2, stages=6), common=sized(2, stages=2))
    rare = memory.models["rare"]
    memory.evict(Victim("rare", (5, 4, 3)))
    rare.needed_from = 2
    memory.update_evictable(rare)
    assert policy.victims(memory.view(), 2, rare, 100.0) == [Victim("rare", (1,))]


def test_a_common_model_takes_its_room_from_a_rare_one() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=sized(2, stages=2), common=sized(2, stages=6))
    common = memory.models["common"]
    memory.evict(Victim("common", (5, 4, 3)))
    common.needed_from = 2
    memory.update_evictable(common)
    assert policy.victims(memory.view(), 2, common, 100.0) == [Victim("rare", (1,))]


@pytest.mark.parametrize(("gain", "piece"), [(0.1, 2), (9.0, 1)])
def test_a_learned_cache_goes_where_it_saves_less_than_its_bytes_of_stages(gain: float, piece: int) -> None:
    policy = Late(ResidencyConfig())
    memory = Memory(100, {"a": Footprint((2, 2, 2), (2.0, 2.0, 0.5), (0,), (gain,)), "new": sized()})
    policy.requested(memory.models["a"], 0.0)
    memory.begin("a", (0, 1, 2))
    policy.loaded(memory.loaded("a", (0, 1, 2)), 0.0)
    assert policy.victims(memory.view(), 2, memory.models["new"], 9.0) == [Victim("a", (piece,))]


def test_a_learned_cache_that_is_not_there_makes_nobody_cheap() -> None:
    policy = Late(ResidencyConfig())
    poor = Footprint((2, 2, 2), (2.0, 2.0, 0.5), (0,), (1e-6,))
    footprints = {f"common{number}": poor for number in range(6)} | {"rare": sized(2, stages=2)}
    memory = memory_of(policy, 100, **footprints, new=sized())
    for turn in range(20):
        for name in list(footprints)[:6]:
            policy.requested(memory.models[name], 101.0 + turn)
    assert policy.victims(memory.view(), 2, memory.models["new"], 121.0) == [Victim("rare", (1,))]


def test_a_model_that_goes_as_a_whole_is_worth_all_that_it_takes_to_load() -> None:
    policy = Late(ResidencyConfig(stages=False))
    memory = Memory(100, {"a": Footprint((8,), (1.0,), fixed=3.0)})
    policy.requested(memory.models["a"], 0.0)
    load(memory, policy, "a", 0.0)
    assert policy.worth(memory.models["a"], 5.0) == policy.gain(memory.models["a"], 5.0)


def test_sizes_as_measured_count_from_then_on() -> None:
    policy = Late(ResidencyConfig())
    memory = Memory(100, {"a": sized(2, stages=2), "b": sized(2, stages=2), "new": sized()})
    for name in ("a", "b"):
        policy.requested(memory.models[name], 0.0)
        load(memory, policy, name, 0.0)
    assert policy.victims(memory.view(), 1, memory.models["new"], 9.0) == [Victim("a", (1,))]
    memory.evict(Victim("b", (1, 0)))
    policy.evicted(memory.models["b"], 9.0)
    memory.begin("b", (0, 1))
    policy.loaded(memory.loaded("b", (0, 1), (20, 20)), 9.0)  # as many seconds for ten times the bytes
    assert policy.victims(memory.view(), 1, memory.models["new"], 9.0) == [Victim("b", (1,))]


def runs(*sizes: int, seconds: tuple[float, ...] = (), fixed: float = 0.0) -> Footprint:
    """A model whose bytes take a second each to load; `seconds` are those that its stages run."""
    return Footprint(sizes, tuple(map(float, sizes)), fixed=fixed, runs=seconds)


@pytest.mark.parametrize(
    ("seconds", "victims"),
    [
        ((), [Victim("rare", (2, 1))]),
        ((5.0, 5.0, 5.0), [Victim("common", (2,)), Victim("rare", (2,))]),  # one stage is loaded while two run
        ((20.0, 20.0, 5.0), [Victim("common", (2, 1))]),  # both are loaded while those before them run
        ((1.0, 1.0, 1.0), [Victim("rare", (2, 1))]),
    ],
)
def test_stages_that_are_loaded_while_earlier_ones_run_go_first(
    seconds: tuple[float, ...], victims: list[Victim]
) -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=runs(10, 10, 10), common=runs(10, 10, 10, seconds=seconds), new=sized())
    assert policy.victims(memory.view(), 20, memory.models["new"], 100.0) == victims
    # Where others wait, or the model itself is being loaded, nothing has time to be loaded meanwhile.
    assert policy.victims(memory.view(waiting=1), 20, memory.models["new"], 100.0) == [Victim("rare", (2, 1))]
    assert policy.victims(memory.view(), 20, memory.models["common"], 100.0) == [Victim("rare", (2, 1))]


def test_the_stage_that_saves_the_fixed_part_of_a_load_goes_last() -> None:
    policy = Late(ResidencyConfig())
    memory = memory_of(policy, rare=runs(10, 10, fixed=99.0), common=runs(10, 10), new=sized())
    assert policy.victims(memory.view(), 20, memory.models["new"], 100.0) == [
        Victim("rare", (1,)),
        Victim("common", (1,)),
    ]


def test_with_many_models_no_stages_are_told_apart_that_are_loaded_meanwhile() -> None:
    policy = Late(ResidencyConfig())
    rare = {f"rare-{place:02}": sized(20) for place in range(FEW)}
    memory = memory_of(policy, 2000, **rare, common=runs(10, 10, seconds=(25.0, 25.0)), new=sized())
    assert [one.model for one in policy.victims(memory.view(), 10, memory.models["new"], 100.0)] == ["rare-00"]


def test_admission_counts_what_a_request_waits_for_where_stages_run_as_they_come() -> None:
    memory = Memory(100, {"a": runs(50, 50, seconds=(25.0, 25.0), fixed=9.0)})
    memory.begin("a", (0, 1))
    model = memory.loaded("a", (0, 1))
    assert model.wait_seconds == 0.0
    memory.evict(Victim("a", (1,)))
    assert model.wait_seconds == 50.0 - 25.0
    memory.evict(Victim("a", (0,)))
    assert model.wait_seconds == 9.0 + 100.0 - 25.0
