"""The comparison on requests of different lengths: its baselines, its costs and its tables."""

from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.costs import Curve, Grid
from latebind.repository.directory import json_bytes
from latebind.simulation.workloads import poisson
from research.__main__ import app
from research.lengths import simulated
from research.lengths.costs import SHAPES, Measured, read_costs
from research.lengths.simulated import Padded, Scene, Task, long_tail, sides, text_lengths
from tests.batching.test_lengths import Watched, call, text

GRID = Grid((4, 512), tuple(Curve((1, 32), (1e-3 + 1e-4 * n, 1e-3 + 32e-4 * n)) for n in (4, 512)))
SCENE = Scene(Measured("drawn", 512, (GRID, GRID)), {"long tail": long_tail()})


def policy(name: str, size: int, window: float = 0.0) -> PolicyConfig:
    return PolicyConfig(f"{simulated.POLICIES}:{name}", size, window, shed=False)


def test_sorted_batches_are_of_neighbors_in_length() -> None:
    assert _ran(policy("Sorted", 2)) == [(9,), (5, 6), (7, 40), (41,)]


def test_the_programme_cuts_where_the_sum_is_least() -> None:
    assert _ran(policy("Programme", 8), fixed=0.05) == [(9,), (5, 6, 7), (40, 41)]
    assert _ran(policy("Programme", 8), fixed=0.0) == [(9,), (5,), (6,), (7,), (40,), (41,)]


def test_a_budget_counts_padded_tokens() -> None:
    assert _ran(policy("Budget", 8, 0.100)) == [(9,), (40, 5), (41, 6), (7,)]


def _ran(config: PolicyConfig, *, fixed: float = 0.05) -> list[tuple[int, ...]]:
    """Return the lengths of each batch, where the first request runs alone and the others come meanwhile."""
    simulator = Watched(text(fixed=fixed, stages=1), config)
    simulator.run([call(0.0, 9, stages=1), *[call(0.001, length, stages=1) for length in (40, 5, 41, 6, 7)]])
    return [lengths for _, lengths in simulator.ran]


def test_every_side_answers_and_padding_is_never_below_one() -> None:
    for side in sides(32):
        found = simulated.run(Task("long tail", 0.6, side, requests=100), SCENE).figures
        assert 0.0 <= found.in_time <= 1.0 <= found.padding
        assert len(found.quarters) == 4


def test_nobody_can_have_more_in_time_than_what_there_is_time_for() -> None:
    bounds = [SCENE.bound("long tail", load) for load in (0.5, 1.0, 1.4, 4.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == bounds[1] > bounds[2] > 1 / 1.4, "the longest are left out first"
    assert 0.25 < bounds[3] < bounds[2]
    evenly = [SCENE.in_batches("long tail", load) for load in (0.1, 1.0, 1.4)]
    assert evenly[0] == pytest.approx(1.0)
    assert 1.0 > evenly[1] > evenly[2] > 0.4


def test_the_programme_takes_the_least_of_all_ways_to_cut() -> None:
    random = Random(4)
    served = SCENE.served()
    pairs = [(length, 1) for length in SCENE.lengths("long tail")]
    calls = list(poisson(served, rate=1e9, requests=9, allowed=1e3, random=random, lengths=pairs))
    simulator = Padded(SchedulerConfig((served,), 1, policy("Programme", 32)))
    taken = max(record.ended for record in simulator.run(calls))
    first, *others = [one.inputs for one in calls]
    others.sort()
    costs = served.costs

    def least(lengths: list[int]) -> float:
        return min(
            [costs.remaining(0, n, lengths[n - 1]) + least(lengths[n:]) for n in range(1, len(lengths) + 1)],
            default=0.0,
        )

    assert taken == pytest.approx(costs.remaining(0, 1, first) + least(others), rel=0.03)  # lengths are classed


def test_the_command_reports_ratios_and_every_side(tmp_path: Path) -> None:
    file, words = tmp_path / "costs.json", tmp_path / "words.txt"
    file.write_bytes(json_bytes(SCENE.costs))
    words.write_text("a\thow are you?\nb\tfine\n")
    assert text_lengths(words) == (6, 3)
    assert read_costs(file) == SCENE.costs
    page = tmp_path / "page.html"
    options = ["--text", f"words={words}", "--load", "1.2", "--side", "sorted(4)", "--seeds", "2", "--requests", "60"]
    found = CliRunner().invoke(app, ["lengths", str(file), *options, "--processes", "1", "--page", str(page)])
    assert found.exit_code == 0, found.output
    told = page.read_text()
    assert all(name in told for name in ("late", "lazy+", "sorted(4)", "words", "long tail"))


@pytest.mark.parametrize("given", [["--text", "words"], ["--side", "none"]])
def test_what_is_asked_wrongly_is_said(tmp_path: Path, given: list[str]) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(json_bytes(SCENE.costs))
    assert CliRunner().invoke(app, ["lengths", str(file), *given]).exit_code == 2
    assert CliRunner().invoke(app, ["lengths", str(tmp_path / "none.json")]).exit_code == 2


def test_costs_are_measured_over_rows_and_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", (2, 8, 2))
    monkeypatch.setattr("research.lengths.costs.BATCHES", (1, 2))
    file = tmp_path / "costs.json"
    found = CliRunner().invoke(app, ["lengths-costs", str(file), "--shape", "tiny", "--backend", "eager"])
    assert found.exit_code == 0, found.output
    costs = read_costs(file)
    assert len(costs.stages) == 2
    assert all(grid.lengths[0] == 4 and grid.lengths[-1] == 512 and grid.makes_sense for grid in costs.stages)
