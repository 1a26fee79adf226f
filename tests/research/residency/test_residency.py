"""The bench of residency: hours repeat, nobody is below the bounds, what is told is what was played."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from latebind.domain.errors import ConfigError
from latebind.simulation.traces import Pairing, Service, drawn
from research.__main__ import app
from research.mcache import parts, report
from research.mcache.crowd import crowd, server
from research.mcache.decision import decision_table
from research.mcache.models import Family, Storage
from research.mcache.scenes import Many, Seven, halves, hours
from research.mcache.sides import LATE, LFU, LRU, RESIDENT, WHOLE, Bound, Cell, Policy, policy

SERVICES = tuple(drawn(Random(0)))
PLAYED = ("models", "table", "cdf", "ablation", "known", "memory", "many", "bounds", "crowd", "open")
TINIEST = "--seeds 1 --processes 1 --pairing quantile --requests 40 --memory 60 --policy iam --policy late"
TINY = parts.Plan(SERVICES, seeds=2, pairings=(Pairing.RANDOM,), requests=150, processes=1)


def seven(seed: int = 0, family: Family = Family.A) -> Seven:
    hour = hours(SERVICES, 2, 400)[seed].hour
    return Seven(hour, 0, seed, Pairing.RANDOM, family, Storage(), 400)


def quiet(text: str, share: float) -> None:
    del text, share


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
    (first, _) = hours(SERVICES, 1, 1)
    requests, footprints = Many(first.hour, 0, 0, ("http",), Storage(), 5000).made()
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
    found = parts.table(TINY, (LFU, LATE), quiet)
    assert [case.share for case in found] == [0.2, 0.4, 0.6, 0.8, 1.0]
    for sides in found.values():
        assert list(sides) == [LRU, LFU, LATE]
        assert all(len(cells) == 4 for cells in sides.values())
    rows = report.table_rows(found, "random", 0.26)
    assert [row["policy"] for row in rows[:3]] == ["lru", "lfu", "late"]
    assert rows[0]["against lru"] == report.NOTHING
    at_40 = rows[4]
    assert (at_40["memory"], at_40["policy"], at_40["paper's s"]) == ("40%", "lfu", "8.20")
    assert at_40["paper's, against lru"] == "+18%"
    (_, lfu, late) = report.throughput_rows(found, 0.26)
    assert (lfu["40%"], lfu["40%, paper"]) == ("1.00 [1.00, 1.00]", "")
    assert "20%" not in late


def test_against_lru_is_the_ratio_of_means_over_paired_hours() -> None:
    assert report.against(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == "-50.0% [-50.0, -50.0]"
    assert report.against(None, np.array([2.0])) == ""


def test_memory_is_compared_where_loads_are_equal() -> None:
    assert report.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 4.0) == pytest.approx(0.4)
    assert report.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 2.5) == pytest.approx(0.5)
    assert report.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 9.0) == 0.2
    assert report.enough([0.2, 0.4, 0.6], [6.0, 4.0, 1.0], 0.5) == 1.0


def test_memory_that_is_saved_is_told_in_points() -> None:
    found: parts.Found = {
        parts.Case("random", 0.4): {LRU: loads(9, 9), LATE: loads(5, 6)},
        parts.Case("random", 0.6): {LRU: loads(5, 6), LATE: loads(3, 3)},
    }
    (row,) = report.saved_rows(found, (0.6,))
    assert (row["policy"], row["needs"], row["points saved"]) == ("late", "40%", "+20.0 [+20.0, +20.0]")


def test_a_distribution_is_told_by_its_quantiles() -> None:
    within = tuple(min(1.0, 0.4 + 0.1 * step) for step in range(401))
    found: parts.Found = {parts.Case("random", 0.4): {LRU: [Cell(1.0, 0.4, within)]}}
    (row,) = report.distribution_rows(found)
    assert (row["50% within s"], row["90% within s"], row["paper's 90%"]) == ("0.1", "0.5", "< 10")


def test_clients_that_wait_get_more_answers_from_late_than_from_lru() -> None:
    found = crowd(
        replace(TINY, seeds=1, requests=120), (server("lru", "lru"), server("late", "late")), (0.4,), quiet, clients=8
    )
    (servers,) = found.values()
    lru, late = servers.values()
    assert all(ours.throughput > theirs.throughput for ours, theirs in zip(late, lru, strict=True))
    (first, row) = report.crowd_rows(found)
    assert first["times the first"] == "1.00 [1.00, 1.00]"
    assert float(str(row["/s"])) > float(str(first["/s"]))


def test_a_model_that_does_not_fit_leaves_its_cell_empty() -> None:
    assert report.loading([Cell(1.0), None]) is None
    assert report.shares_within([None]) is None


def test_decisions_have_a_row_for_each_policy() -> None:
    rows = report.decision_rows(decision_table(["lru", "late"], models=40, decisions=10))
    assert [(row["policy"], row["models go"]) for row in rows] == [
        ("lru", "whole"),
        ("late", "piece by piece"),
    ]
    assert all(0.0 < float(str(row["median"])) <= float(str(row["longest"])) + 1 for row in rows)


def test_every_part_that_plays_prints_its_tables_and_a_page(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.html"
    asked = [word for part in PLAYED for word in ("--part", part)]
    found = CliRunner().invoke(app, ["residency", *asked, *TINIEST.split(), "--json", str(file), "--page", str(page)])
    assert found.exit_code == 0, found.output
    figures = json.loads(file.read_text())
    assert set(figures) == set(PLAYED)
    for tables in figures.values():
        assert all(tables.values())
    table = next(iter(figures["table"].values()))
    assert {row["policy"] for row in table} == {"lru", "iam", "late"}
    assert "latency without queueing" in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policy fifo", "there is no policy 'fifo'"),
        ("--memory 0", "--memory 0 is no share"),
        ("--trace nowhere.csv", "nowhere.csv is no trace"),
    ],
)
def test_what_makes_no_sense_is_told(words: str, message: str) -> None:
    found = CliRunner().invoke(app, ["residency", *words.split()])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_bounds_of_what_cannot_run_are_none() -> None:
    requests, footprints = seven().made()
    assert [bound.cell(requests, footprints, 10**6) for bound in Bound] == [None] * 3
    assert inf not in [footprint.penalty for footprint in footprints.values()]
