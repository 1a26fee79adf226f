"""The bench of residency: hours repeat, nobody is below the bounds, what is told is what was played."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from research.mcache import parts
from research.mcache.crowd import crowd, server
from research.mcache.decision import decision_rows
from research.mcache.models import FAMILIES, FLOAT, UNEVEN, Family, Storage, slowest_first
from research.mcache.play import (
    LATE,
    LFU,
    LRU,
    RESIDENT,
    WHOLE,
    Bound,
    Case,
    Cell,
    Plan,
    Played,
    Policy,
    Scene,
    halves,
    policy,
)
from research.mcache.traces import Pairing, Service, drawn
from research.policies import EVICTION
from tests.research.conftest import quiet

SERVICES = tuple(drawn(Random(0)))
TINY = Plan(SERVICES, seeds=2, pairings=(Pairing.RANDOM,), requests=150, processes=1)


def seven(seed: int = 0, family: Family = Family.A) -> Scene:
    return Plan(SERVICES, seeds=2, pairings=(Pairing.RANDOM,), family=family, requests=400).sevens()[seed]


def loads(*seconds: float) -> list[Cell | None]:
    return [Cell(one, 0.5, (0.5, 1.0)) for one in seconds]


def test_an_hour_is_the_same_each_time_it_is_made_and_another_by_seed() -> None:
    assert seven().made() == seven().made()
    assert seven().made()[0] != seven(1).made()[0]


def test_halves_share_no_minute() -> None:
    first, second = halves([Service((1,) * 60 + (2,) * 60)] * 2)
    assert [set(service.counts) for service in (*first, *second)] == [{1}, {1}, {2}, {2}]


@pytest.mark.parametrize(
    ("services", "message"),
    [([Service((1,) * 100)], "100 minutes: give one of two hours"), ([Service((1,) * 120, "queue")], "http")],
)
def test_a_trace_that_is_too_short_or_empty_is_told(services: list[Service], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        halves(services)


def test_many_models_are_as_many_as_services_and_each_is_asked_for() -> None:
    requests, footprints = Plan(SERVICES, seeds=1, requests=5000).many(("http",))[0].made()
    assert {request.model for request in requests} == set(footprints)
    assert 40 < len(footprints) < 130


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_nobody_loads_less_than_the_bounds_say(share: float) -> None:
    requests, footprints = seven().made()
    budget = round(share * sum(footprint.size for footprint in footprints.values()))

    def load(side: Policy | Bound) -> float:
        cell = side.cell(requests, footprints, budget)
        assert cell is not None
        return cell.loading

    whole = [policy(name) for name in ("lru", "lfu", "iam", "iam-oracle", "belady")]
    assert min(load(side) for side in (*whole, WHOLE)) >= load(Bound.WHOLE) - 1e-9
    assert load(RESIDENT) >= load(Bound.PIECES) - 1e-6
    assert load(LATE) >= load(Bound.STREAMING) - 1e-6
    assert load(policy("late", known=16)) >= load(Bound.STREAMING) - 1e-6


def test_belady_is_the_optimum_where_all_models_are_alike() -> None:
    requests, footprints = seven().made()
    alike = dict.fromkeys(footprints, Storage().footprint([1000]))
    for models in (1, 3, 5):
        played = policy("belady").cell(requests, alike, 1000 * models)
        least = Bound.WHOLE.cell(requests, alike, 1000 * models)
        assert played is not None
        assert least is not None
        assert played.loading == pytest.approx(least.loading)


def test_whole_models_do_not_fit_where_the_largest_does_not_and_late_still_runs() -> None:
    requests, footprints = seven().made()
    budget = round(0.2 * sum(footprint.size for footprint in footprints.values()))
    assert LRU.cell(requests, footprints, budget) is None
    assert RESIDENT.cell(requests, footprints, budget) is None
    assert LATE.cell(requests, footprints, budget) is not None


def test_what_a_cell_says_of_loading_times_is_what_was_played() -> None:
    requests, footprints = seven(family=Family.B).made()
    cell = LRU.cell(requests, footprints, sum(footprint.size for footprint in footprints.values()))
    assert cell is not None
    models = {request.model for request in requests}
    assert cell.loading == pytest.approx(sum(footprints[name].penalty for name in models) / len(requests))
    assert cell.hits == cell.within[0] == pytest.approx(1 - len(models) / len(requests))
    assert cell.within[-1] == 1.0


def test_a_part_has_a_cell_for_each_half_and_seed_and_lru_is_always_there() -> None:
    played = TINY.play(TINY.sevens(), (LRU, LFU, LATE), parts.FIGURE_6, quiet)
    assert [case.share for case in played] == [0.2, 0.4, 0.6, 0.8, 1.0]
    for sides in played.values():
        assert list(sides) == [LRU, LFU, LATE]
        assert all(len(cells) == 4 for cells in sides.values())
    rows = parts.table_rows(played, "random", 0.26)
    assert [row["policy"] for row in rows[:3]] == ["lru", "lfu", "late"]
    assert rows[0]["against lru"] == parts.NOTHING
    at_40 = rows[4]
    assert (at_40["memory"], at_40["policy"], at_40["paper's s"]) == ("40%", "lfu", "8.20")
    assert at_40["paper's, against lru"] == "+18%"
    (_, lfu, late) = parts.throughput_rows(played, 0.26)
    assert (lfu["40%"], lfu["40%, paper"]) == ("1.00 [1.00, 1.00]", "")
    assert "20%" not in late


def test_against_lru_is_the_ratio_of_means_over_paired_hours() -> None:
    assert parts.against(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == "-50.0% [-50.0, -50.0]"
    assert parts.against(None, np.array([2.0])) == ""


def test_memory_is_compared_where_loads_are_equal() -> None:
    assert parts.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 4.0) == pytest.approx(0.4)
    assert parts.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 2.5) == pytest.approx(0.5)
    assert parts.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 9.0) == 0.2
    assert parts.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 0.5) == 1.0


def test_memory_that_is_saved_is_told_in_points() -> None:
    found: Played = {
        Case("random", 0.4): {LRU: loads(9, 9), LATE: loads(5, 6)},
        Case("random", 0.6): {LRU: loads(5, 6), LATE: loads(3, 3)},
    }
    (row,) = parts.saved_rows(found, (0.6,))
    assert (row["policy"], row["needs"], row["points saved"]) == ("late", "40%", "+20.0 [+20.0, +20.0]")


def test_clients_that_wait_get_more_answers_from_late_than_from_lru() -> None:
    servers = (server("lru", "lru"), server("late", "late"))
    found = crowd(replace(TINY, seeds=1, requests=400), servers, (0.4,), 8, quiet)
    ((first, row),) = found.tables.values()
    assert first["times the first"] == "1.000 [1.000, 1.000]"
    assert float(str(row["/s"])) > float(str(first["/s"]))


def test_every_policy_is_timed_with_many_models_in_memory() -> None:
    rows = decision_rows(models=200, decisions=20)
    assert [row["policy"] for row in rows] == list(EVICTION)
    assert [row["models go"] for row in rows if row["policy"] == "late"] == ["piece by piece"]
    assert all(0.0 < float(str(row["median"])) <= float(str(row["longest"])) + 1 for row in rows)


PUBLISHED = {
    "ResNet-50": 25_557_032,
    "ResNet-152": 60_192_808,
    "SSD300": 35_641_826,
    "BERT-base": 109_482_240,
    "BERT-large": 335_141_888,
    "RoBERTa-large": 355_359_744,
    "XLNet-large": 360_268_800,
    "GPT-2-medium": 354_823_168,
    "T5-large": 737_668_096,
    "T5-large encoder": 334_939_648,
}


@pytest.mark.parametrize("family", Family)
def test_networks_have_as_many_parameters_as_their_checkpoints(family: Family) -> None:
    found = {name: sum(stages) for name, stages in FAMILIES[family].items()}
    assert found == {name: PUBLISHED[name] for name in found}
    assert len(found) == 7


def test_of_family_b_every_model_fits_into_a_fifth_of_the_memory() -> None:
    sizes = [footprint.size for footprint in Storage().footprints(Family.B).values()]
    assert max(sizes) <= sum(sizes) / 5


def test_a_load_takes_the_fixed_part_and_the_bytes_over_the_bandwidth() -> None:
    found = Storage(fixed=0.5, bandwidth=1e9).footprints(Family.A)["BERT-base"]
    assert found.size == FLOAT * PUBLISHED["BERT-base"]
    assert found.penalty == pytest.approx(0.5 + found.size / 1e9)


def test_uneven_penalties_change_who_is_slowest() -> None:
    even, uneven = (slowest_first(storage.footprints(Family.A)) for storage in (Storage(), Storage(factors=UNEVEN)))
    assert even[0] == "T5-large"
    assert even[-1] == "ResNet-50"
    assert even != uneven
