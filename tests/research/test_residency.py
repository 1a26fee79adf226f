"""The bench of residency: hours repeat, nobody is below the bounds, what is told is what was played."""

from dataclasses import replace
from random import Random

import pytest

from research.mcache import parts
from research.mcache.crowd import IN_ORDER, crowd
from research.mcache.crowd import LATE as LATE_SIDE
from research.mcache.models import SEVEN
from research.mcache.play import LATE, LFU, LRU, WHOLE, Bound, Plan, Policy, Scene, policy
from research.mcache.traces import Pairing, drawn
from tests.research.conftest import quiet

SERVICES = tuple(drawn(Random(0)))
TINY = Plan(SERVICES, seeds=2, pairings=(Pairing.RANDOM,), requests=150, processes=1)


def seven(seed: int = 0) -> Scene:
    return Plan(SERVICES, seeds=2, pairings=(Pairing.RANDOM,), requests=400).sevens()[seed]


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
    assert load(LATE) >= load(Bound.STREAMING) - 1e-6
    assert load(policy("late", known=16)) >= load(Bound.STREAMING) - 1e-6


def test_a_cell_is_told_by_the_loads_of_its_requests() -> None:
    requests, footprints = seven().made()
    cell = LRU.cell(requests, footprints, sum(footprint.size for footprint in footprints.values()))
    assert cell is not None
    models = {request.model for request in requests}
    assert cell.loading == pytest.approx(sum(footprints[name].penalty for name in models) / len(requests))
    assert cell.hits == pytest.approx(1 - len(models) / len(requests))


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


def test_clients_that_wait_get_more_answers_from_late_than_from_lru_and_fewest_where_the_oldest_goes_first() -> None:
    (rows,) = crowd(replace(TINY, seeds=1, requests=400), (0.4,), 8, quiet).tables.values()
    through = {row["side"]: float(str(row["answers a second"])) for row in rows}
    assert rows[0]["over lru"] == "1.000 [1.000, 1.000]"
    assert through[IN_ORDER] < through["lru"] < through[LATE_SIDE]


PUBLISHED = {
    "ResNet-50": 25_557_032,
    "SSD300": 35_641_826,
    "BERT-base": 109_482_240,
    "RoBERTa-large": 355_359_744,
    "XLNet-large": 360_268_800,
    "GPT-2-medium": 354_823_168,
    "T5-large": 737_668_096,
}


def test_networks_have_as_many_parameters_as_their_checkpoints() -> None:
    assert {name: sum(stages) for name, stages in SEVEN.items()} == PUBLISHED
